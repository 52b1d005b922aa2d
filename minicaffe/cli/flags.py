"""The caffe tool's spellings, turned into this command line's options before click reads them. Source: Caffe's tools/caffe.cpp.

    device_query                       device-query
    upgrade_solver_proto_text          upgrade --solver
    -solver s.prototxt, --solver=...   --solver=s.prototxt
    -weights a,b                       --weights=a --weights=b
    -sigint_effect stop                --sigint-effect=stop

Flags are those of gflags: -x or --x, with =v or a space before the value; an empty value counts as none.

The data tools' commands are GflagsCommands: their own options in these spellings, -resize_width=32 and -gray=true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click

TOOL_FLAGS = (
    "solver", "model", "weights", "snapshot", "gpu", "iterations", "phase", "level", "stage", "sigint_effect", "sighup_effect",
)  # fmt: skip
COMMANDS = ("train", "test", "time", "device-query")
"""The commands that take TOOL_FLAGS."""

ALIASES = {
    "upgrade-net-proto-text": ("upgrade",),
    "upgrade-net-proto-binary": ("upgrade", "--binary"),
    "upgrade-solver-proto-text": ("upgrade", "--solver"),
}
"""Caffe's other tools that are options of a command here."""

LISTS = ("weights", "stage")
"""Flags whose value may hold several, with commas between them."""


def translate(arguments: Sequence[str], known: Sequence[str]) -> list[str]:
    """arguments with the tool's spellings replaced; known: this command line's commands. Raises click.UsageError when a
    flag that takes one value is given two that differ, whatever the spellings."""
    place = next((i for i, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    if place == len(arguments):
        return list(arguments)
    command, rest = arguments[place], arguments[place + 1 :]
    dashed = command.replace("_", "-")
    if dashed in known:
        command = dashed
    words = ALIASES.get(dashed, (command,))
    return [*arguments[:place], *words, *(_translated(rest) if command in COMMANDS else rest)]


def _translated(words: Sequence[str]) -> Iterator[str]:
    given: dict[str, tuple[str, str]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word == "--":
            yield from (word, *rest)
            return
        if not word.startswith("-") or name not in TOOL_FLAGS:
            yield word
            continue
        option = f"--{name.replace('_', '-')}"
        if not equals:
            following = next(rest, None)
            if following is None:
                yield option  # click says what is missing
                return
            value = following
        if not value:
            continue
        if name in LISTS:
            yield from (f"{option}={part}" for part in _listed(value))
            continue
        spelling = f"{word.partition('=')[0]} {value}"
        before, other = given.setdefault(name, (value, spelling))
        if before != value:
            raise click.UsageError(f"{other} and {spelling}: give one of them")
        yield f"{option}={value}"


def _listed(value: str) -> list[str]:
    """A value's parts; one that is a file's name with commas in it stays whole."""
    return [value] if os.path.exists(value) else [part for part in value.split(",") if part]


class GflagsCommand(click.Command):
    """A command whose long options may have one dash, underlines, and, where they are switches, =true or =false."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = {name for p in self.params if isinstance(p, click.Option) and p.is_flag for name in p.opts}
        return super().parse_args(ctx, list(_as_options(args, switches)))


def _as_options(words: Sequence[str], switches: set[str]) -> Iterator[str]:
    for word in words:
        name, equals, value = word.partition("=")
        bare = name.lstrip("-")
        if not name.startswith("-") or len(bare) < 2 or not bare[0].isalpha():
            yield word
            continue
        option = "--" + bare.replace("_", "-")
        if option not in switches:
            yield option + equals + value
        elif value.lower() not in ("false", "0", "no"):
            yield option
