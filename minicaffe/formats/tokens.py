"""Protobuf text format, cut into tokens: names, numbers, strings and punctuation, each with its offset."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain, islice

from minicaffe import limits
from minicaffe.errors import UNSEEN, LimitError, PrototxtError, written_out

from .hints import template
from .source import Place

CONTROL = re.compile("[\x00-\x08\x0e-\x1f]")
"""A control character that no prototxt may contain."""
AT_ONCE, AHEAD = 4096, 16
"""Tokens that are read in one go, and the most that a parser looks at before it asks for more."""
MOST_TOKENS = 200
"""Most tokens, and most backslashes, of a text, for each layer that limits.layers allows."""
NAME, NUMBER, STRING, PUNCTUATION, END, BAD = 1, 2, 3, 4, 5, 6

# The alternatives start with different characters and the last one matches any, which bounds the backtracking.
_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*
    (?:([A-Za-z_]\w*)
    |(\.?\d[\w.]*(?:(?<=[eE])[+-][\w.]*)*)  # 1e-5; values.py refuses 12ab
    |("[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*')
    |([{}<>:\[\],;/.-])
    |(\Z)  # END
    # BAD
    |(.))""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PART = re.compile(r"""("(?:[^"\\\n]|\\[^\n])*"?|'(?:[^'\\\n]|\\[^\n])*'?)|(\#[^\n]*)|[\x0b\x0c]""", re.VERBOSE)
"""A string, closed or not, a comment, or a vertical tab or form feed between tokens."""
_VARIABLE = re.compile(r"\$(\w{1,100}|\{\w{1,100}\}|\(\w{1,100}\))", re.ASCII)
"""A shell's variable."""
_BYTES = re.compile("([\udc80-\udcff]+)")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"} | {c: c for c in "\\'\"?"}


class Text:
    """A text and its file, which converts offsets to places and errors."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.file = file
        self._line_starts = array("q")

    def line_column(self, offset: int) -> tuple[int, int]:
        """Return the line and column, both from 1."""
        if not self._line_starts:
            self._line_starts = array("q", chain([0], (match.end() for match in re.finditer("\n", self.text))))
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def line(self, offset: int) -> int:
        return self.line_column(offset)[0]

    def place(self, offset: int) -> Place:
        return Place(self.file, *self.line_column(offset))

    def error(self, message: str, offset: int, hint: str = "") -> PrototxtError:
        line, begin = self.text.count("\n", 0, offset) + 1, self.text.rfind("\n", 0, offset) + 1
        column, end = offset - begin + 1, self.text.find("\n", offset)
        source_line = self.text[begin : end if end >= 0 else None]
        return PrototxtError(message, file=self.file, line=line, column=column, source_line=source_line, hint=hint)


class Tokens:
    """The tokens of a text as three parallel lists: kinds, words (strings with their quotes) and starts (offsets).

    read_on lengthens the lists, so that a text whose beginning is wrong is not read to its end. Raises LimitError for a text
    of more than MOST_TOKENS backslashes for each layer of the limit: re takes 200 bytes for each in a string.
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        check_count(text, text.text.count("\\"), "backslashes", MOST_TOKENS)
        self.kinds: list[int] = []
        self.words: list[str] = []
        self.starts: list[int] = []
        self._matches: Iterator[re.Match[str]] = _TOKEN.finditer(text.text)

    def read_on(self, most: int = AT_ONCE) -> None:
        """Read the next tokens, unless END has been read. Raises PrototxtError and LimitError."""
        # This is the parser's slowest loop, so the methods are looked up once.
        add_kind, add_word, add_start = self.kinds.append, self.words.append, self.starts.append
        for match in islice(self._matches, most):
            kind = match.lastindex or END
            add_kind(kind)
            add_word(match[kind])
            add_start(match.start(kind))
            if kind == BAD:
                raise _bad_character(self.text, match.start(kind))
            if kind == END:
                self._matches = iter(())
        check_count(self.text, len(self.kinds), "words and signs", MOST_TOKENS)


def check_count(text: Text, count: int, what: str, most: int) -> None:
    """Raise LimitError if a text has more of something than `most` for each layer of the limit."""
    if count > most * limits.layers:
        many = f"more than {most * limits.layers:,} {what}, {most} for each layer of the limit"
        raise LimitError(f"{text.file}: it has {many}: {limits.raising('layers')}")


def unquote(word: str, what: str) -> bytes:
    """Return the bytes of a quoted token. Raises ValueError with a message."""
    body = word[1:-1]
    if "\\" not in body:
        return body.encode("utf-8", "surrogateescape")
    parts, at = [], 0
    for match in _ESCAPE.finditer(body):
        parts += [body[at : match.start()].encode("utf-8", "surrogateescape"), _escape(match, what)]  # surrogates back to bytes
        at = match.end()
    parts.append(body[at:].encode("utf-8", "surrogateescape"))
    return b"".join(parts)


def quote(text: str) -> str:
    """Return the text as a quoted token on one line."""
    for character in '\\"':
        text = text.replace(character, "\\" + character)
    return f'"{_keeping_bytes(text, octal)}"'


def visible(text: str) -> str:
    """Return an equivalent prototxt without invisible characters (errors.UNSEEN) in strings and comments.

    Bytes that are not UTF-8 are unchanged.
    """

    def part(found: re.Match[str]) -> str:
        string, comment = found.groups()
        return _keeping_bytes(string, octal) if string else _keeping_bytes(comment, written_out) if comment else " "

    return _PART.sub(part, text)


def octal(text: str) -> str:
    r"""Return a string's text with invisible characters, newlines and tabs as octal escapes of their bytes: \342\200\256."""
    return re.sub(f"{UNSEEN.pattern}|[\n\t]", lambda found: "".join(f"\\{byte:03o}" for byte in found[0].encode()), text)


def _keeping_bytes(text: str, change: Callable[[str], str]) -> str:
    """Return change(text), except that bytes that are not UTF-8 stay."""
    return "".join(part if i % 2 else change(part) for i, part in enumerate(_BYTES.split(text)))


def _escape(match: re.Match[str], what: str) -> bytes:
    octal, hexadecimal, short, long, simple = match.groups()
    if octal or hexadecimal:
        number = int(octal, 8) if octal else int(hexadecimal, 16)
        if number > 255:
            raise ValueError(f"{match[0]} in {what} is larger than a byte")
        return bytes([number])
    if short or long:
        number = int(short or long, 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise ValueError(f"{match[0]} in {what} is not a character")
        return chr(number).encode()
    if simple not in _SIMPLE:
        raise ValueError(f"{match[0]} in {what} is an unknown escape")
    return _SIMPLE[simple].encode()


def _bad_character(text: Text, offset: int) -> PrototxtError:
    character = text.text[offset]
    if variable := _VARIABLE.match(text.text, offset):
        message, hint = template(variable[0])
        return text.error(message, offset, hint)
    if character in "\"'":
        return text.error("a string is not closed on its line", offset, f"end it with {character}")
    if character == "\N{NO-BREAK SPACE}":
        return text.error("a no-break space", offset, "type a plain space instead")
    if character in "“”„‘’":
        return text.error(f"{character} is a typographic quote", offset, "write \" or ' instead")
    if character == "+":
        return text.error("a number takes no +", offset, "leave it out")
    return text.error(f"unexpected character {character!r}", offset, "a comment starts with #" if character in "/%!" else "")
