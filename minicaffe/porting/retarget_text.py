"""Edits of values in a prototxt's text, which keep comments and layout."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from minicaffe.errors import Error
from minicaffe.formats.prototxt import NetFile
from minicaffe.formats.source import Place
from minicaffe.formats.tokens import NAME, STRING, Text, Tokens, quote, visible

from .retarget_plan import NUM_CLASSES, Change


@dataclass(frozen=True)
class Edited:
    """A change made, and its place."""

    place: Place
    layer: str
    field: str
    old: int | str
    new: int | str


def edit(text: str, net: NetFile, changes: Iterable[Change], classes: tuple[int, int]) -> tuple[str, list[Edited]]:
    """Return the text, from which net was read, with the changes; and their places in order.

    In a comment right after a changed value, the old class count and the old value are replaced too. classes: the old count and
    the new. Raises Error for a field that the text does not contain.
    """
    plain = Text(text, net.file)
    tokens = Tokens(plain)
    tokens.read_on(len(text) + 1)
    starts = [0, *(match.end() for match in re.finditer("\n", plain.text))]
    done: list[tuple[int, int, str]] = []
    edits: list[Edited] = []
    for change in changes:
        name = net.param.layer[change.layer].name
        place = net.sources[change.layer].fields.get(change.path)
        if place is None:
            layer_place = net.sources[change.layer].at()
            raise Error(f'{layer_place}: layer "{name}" has no {change.path} in the text: run `minicaffe upgrade` first')
        first = bisect_left(tokens.starts, starts[place.line - 1] + place.column - 1)  # line and column count from 1
        done.append(_replacement(tokens, first, change))
        edits.append(Edited(place, name, change.path, change.old, change.new))
        done += _comment(plain.text, done[-1], change, classes)
    parts, at = [], 0
    for begin, end, value in sorted(set(done)):  # from the front; TEST and TRAIN give the same edit twice
        parts += [plain.text[at:begin], value]
        at = end
    new = "".join([*parts, plain.text[at:]])
    ending = "\r\n" if "\r\n" in text else "\n"  # Text has \n only
    return visible(new).replace("\n", ending), sorted(edits, key=lambda e: (e.place.line, e.place.column))


def _replacement(tokens: Tokens, first: int, change: Change) -> tuple[int, int, str]:
    """Return (begin, end, new text) of a change. first: the token of the field's name, or of a list's value."""
    at = first
    if tokens.kinds[at] == NAME:
        at += 1 + (tokens.words[at + 1] == ":")  # skip the name and its colon, if any
    old, new = str(change.old), str(change.new)
    if tokens.kinds[at] != STRING:
        return tokens.starts[at], tokens.starts[at] + len(tokens.words[at]), new
    pattern = re.compile(re.escape(old)) if isinstance(change.old, str) else NUM_CLASSES
    last = at
    while tokens.kinds[last + 1] == STRING:  # a string in several pieces
        last += 1
    for word, begin in zip(tokens.words[at : last + 1], tokens.starts[at : last + 1]):
        if pattern.search(word):
            value = pattern.sub(lambda match: match[0].removesuffix(old) + new, word, count=1)
            return begin, begin + len(word), value
    if isinstance(change.old, int):
        raise Error(f"{change.path}: {old} is split over two strings or written with escapes: write it in one plain string")
    return tokens.starts[at], tokens.starts[last] + len(tokens.words[last]), quote(new)


def _comment(text: str, replaced: tuple[int, int, str], change: Change, classes: tuple[int, int]) -> list[tuple[int, int, str]]:
    """Return the edit of a comment in the rest of the line, if only blanks precede it."""
    match = re.compile(r"[ \t]*#[^\n]*").match(text, replaced[1])
    if match is None or not isinstance(change.old, int):
        return []
    values = {str(classes[0]): str(classes[1]), str(change.old): str(change.new)}
    new = re.sub(r"\d+", lambda number: values.get(number[0], number[0]), match[0])
    return [(match.start(), match.end(), new)]
