"""minicaffe's exceptions: every error that a user can cause derives from Error and names its place.

A file may contain a name of ten million letters, or one that changes a terminal's colours, title or writing direction. So
every message is shortened here, and its control characters are escaped.

An error for which pycaffe raises one of Python's exceptions derives from that too, so that old `except` lines still work.

`nearest` finds the close matches of a misspelt name, for hints, in linear time for names of any length and number.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from heapq import nlargest
from pathlib import Path
from typing import Any

LONGEST_WORD, LONGEST = 1000, 20_000
"""Most characters of one word, and of a whole message."""
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{LONGEST_WORD + 1},}}")
_OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)
"""Unicode's control, format (most are bidirectional or have no width), surrogate, line and paragraph separator characters,
without newline and tab."""


_ESCAPED = re.compile(rf"['\n\t\\{UNSEEN.pattern[1:]}")
"""The characters to escape inside $'...'."""


def written_out(text: str) -> str:
    r"""Return text with UNSEEN characters escaped as \x1b or \u202e, so that none acts on a terminal.

    Newlines and tabs stay. A byte that is not UTF-8 (a surrogate, in names of files) becomes \xff.
    """
    return UNSEEN.sub(_code, text)


def on_one_line(text: str) -> str:
    r"""Return written_out's text, also with newlines and tabs as \n and \t: for a name in a table or in a comment."""
    return written_out(text).replace("\n", "\\n").replace("\t", "\\t")


def pasted(word: str, *, path: bool = False) -> str:
    """Return a word of a command to paste into a shell: quoted, and ./ before a path that begins with a dash.

    A word with characters that no terminal shows is quoted as $'a\\x0ab', for bash and zsh.
    """
    word = f"./{word}" if path and word.startswith("-") else word
    if on_one_line(word) == word:
        return shlex.quote(word)
    return f"$'{_ESCAPED.sub(_shell_code, word)}'"


def _shell_code(character: re.Match[str]) -> str:
    if character[0] in ("'", "\\"):
        return f"\\{character[0]}"
    return f"\\u{ord(character[0]):04x}" if "\x80" <= character[0] <= "\xff" else _code(character)  # \x85 would be a byte


def first_of(words: Sequence[str], between: str = ", ", most: int = 8) -> str:
    """Return the first words of a list of any length, and how many more there are."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return between.join(words[:most]) + more


def listed(words: Iterable[str]) -> str:
    """Return words, of which there must be some, as "A, B and C"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _code(character: re.Match[str]) -> str:
    code = ord(character[0])
    code -= 0xDC00 * (0xDC80 <= code <= 0xDCFF)  # surrogateescape stores a byte this way
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def shortened(text: str, most: int = LONGEST) -> str:
    """Return written_out's text without the middle of each word, or of the text, that is too long."""
    cut = _cut_down(text, most)  # first, because escaping a very long text is slow; again below, because escapes are longer
    written = written_out(cut)
    return cut if written == cut else _cut_down(written, most)


def _cut_down(text: str, most: int) -> str:
    if len(text) <= min(LONGEST_WORD, most):
        return text
    return _cut(_LONG_WORD.sub(lambda word: _cut(word[0], LONGEST_WORD), text), most)


def _cut(text: str, most: int) -> str:
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[: most // 2]}...({left_out:,} characters more)...{text[len(text) - most // 2 :]}"


class Error(Exception):
    """The base class of minicaffe's errors."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class NotAFileError(Error, OSError):
    """A name of a pipe, a socket or a device, or one that no file can have."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class PrototxtError(Error, RuntimeError):
    """A prototxt (net or solver) that cannot be read; str() is `file:line:col: message`, the source line, a caret, a hint."""

    def __init__(
        self, message: str, *, file: str = "<text>", line: int = 0, column: int = 0, source_line: str = "", hint: str = ""
    ) -> None:
        self.message, self.file, self.line, self.column = shortened(message), shortened(file), line, column
        self.source_line, self.hint = source_line, shortened(hint)
        super().__init__(self._text())

    def _text(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        lines = [f"{where}: {self.message}"]
        if self.source_line.strip():
            first = max(0, self.column - 100)  # in a long line, show the part around the column
            shown = self.source_line[first : first + 120].rstrip()
            # one column for each character, tabs included, to align the caret
            shown = "".join(c if c.isprintable() else " " for c in shown)
            lines += [f"  {shown}", "  " + " " * (self.column - 1 - first) + "^"]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class UpgradeError(PrototxtError):
    """A net of an older generation that cannot be upgraded; block: the index of the layer at fault (-1: the input fields)."""

    def __init__(self, message: str, block: int | None = None, hint: str = "") -> None:
        self.block = block
        super().__init__(message, hint=hint)


class PrototxtWarning(UserWarning):
    """An unknown field in a prototxt (another fork's, or misspelt), which is skipped; or one without effect at its place."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class LimitError(Error, RuntimeError):
    """A file that declares more than minicaffe.limits allow."""


class LayerError(Error, RuntimeError):
    """A layer that cannot be set up or run: `ROIPooling layer "roi_pool5": pooled_h must be > 0, got 0 (test.prototxt:341)`."""


class WeightsError(Error, RuntimeError):
    """A weights file (.caffemodel, .h5, .safetensors, .npz, .binaryproto) that cannot be read, or does not fit the net."""


class SolverError(Error, RuntimeError):
    """A solver prototxt that cannot be used, or a training run that cannot continue (the loss is not finite)."""


class DeviceError(Error, RuntimeError):
    """No usable GPU, or an operation that failed on it."""


class BlobError(Error):
    """A shape that no blob can have; the net turns it into a LayerError that names the layer."""


class FillerError(Error):
    """A filler that is unknown or cannot fill a blob; the layer turns it into a LayerError that names it."""


class SettingsError(Error):
    """Detection settings (a yml) with an unknown key or a value of the wrong type."""


class DataError(Error):
    """An image or an annotation file that cannot be read, or boxes that no image can have."""


class UnknownClassError(DataError):
    """An annotation of a class that is missing from the list of classes."""


class UnknownSplitError(DataError):
    """A split that a dataset lacks. The dataset has others."""


class ArrayError(DataError, ValueError):
    """An array that a function of pycaffe's io refuses."""


class NetSpecError(Error, AttributeError, TypeError, ValueError):
    """A bottom that is not the Top of a layer, an unknown field of a layer's messages, or a value that a field refuses."""


class UnconnectedError(Error, RuntimeError):
    """Tops that are not connected by layers with coordinates."""


class AlignmentError(Error, AssertionError):
    """Layers whose coordinates cannot be found, or blobs that no crop aligns."""


@contextmanager
def os_errors_as(kind: type[Error], what: str) -> Iterator[None]:
    """Turn an OSError in the block into an error of this kind: "what: Permission denied"."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


@contextmanager
def read_errors_as(kind: type[Error], what: str) -> Iterator[None]:
    """Turn an OSError in a block that reads into an error of this kind, as os_errors_as; for a missing file as unread."""
    with os_errors_as(kind, what):
        try:
            yield
        except FileNotFoundError as error:
            if not error.filename:
                raise
            raise kind(unread(os.fsdecode(error.filename), "", error)) from error


def unread(name: str, what: str, error: Exception) -> str:
    """Return the message for a file that cannot be read: "a.png: cannot read the image: Permission denied".

    One that is missing has one message everywhere: "tset.prototxt: no such file; did you mean test.prototxt?"
    """
    if isinstance(error, FileNotFoundError):
        return f"{name}: {missing(os.fsdecode(error.filename or name))}"
    return f"{name}: {what}: {getattr(error, 'strerror', None) or error}"


def missing(path: str | os.PathLike[str]) -> str:
    """Return "no such file", with what helps: a close match in its folder, or the folder that is missing too."""
    place = Path(path)
    with suppress(OSError, ValueError):
        if not place.parent.is_dir():
            return f"no such file; there is no folder {place.parent}"
        near = nearest(place.name, os.listdir(place.parent))
        if near:
            return f"no such file; did you mean {on_one_line(near[0])}?"
    return "no such file"


def out_of_memory(error: MemoryError, for_what: str = "") -> str:
    """Return "out of memory", its purpose if given, and the error's text: NumPy gives the size, Python and Pillow give none."""
    return f"out of memory{f' for {for_what}' * bool(for_what)}{f': {error}' * bool(str(error))}"


@contextmanager
def memory_errors_as(kind: type[Error], what: str, for_what: str = "", next_step: str = "") -> Iterator[None]:
    """Turn a MemoryError in the block into an error of this kind: "what: out of memory for it: next step"."""
    try:
        yield
    except MemoryError as error:
        raise kind(f"{what}: {out_of_memory(error, for_what)}{f': {next_step}' * bool(next_step)}") from error


_options: frozenset[str] | None = None
"""The options of the running command. None in a program, where messages may name options and Python alike."""


@contextmanager
def offering(options: Iterable[str]) -> Iterator[None]:
    """In the block, let messages name no --option but these."""
    global _options
    before, _options = _options, frozenset(options)
    try:
        yield
    finally:
        _options = before


def ways(*texts: str) -> str:
    """Join a message's ways out with ", or ", except those by an --option that the command lacks."""
    return ", or ".join(_open(texts))


def in_brackets(*texts: str) -> str:
    """Return the ways out in brackets after a space, without those that ways omits; "" if none is left."""
    return f" ({found})" if (found := ", ".join(_open(texts))) else ""


def _open(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts that name only options that the command has."""
    return (text for text in texts if _options is None or _options.issuperset(_OPTION.findall(text)))


def optional_module(name: str, advice: str) -> Any:
    """Return the module of an optional dependency. Raises Error with advice if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Error(advice) from error


def install(extra: str) -> str:
    """Return the command that installs an extra, for messages. It names the clone that minicaffe runs from."""
    root = Path(__file__).resolve().parents[1]
    if not (root / "setup.cfg").is_file():
        return f'pip install -e ".[{extra}]" in a clone of minicaffe'
    with suppress(OSError):  # the working directory may be gone
        if Path.cwd() == root:
            return f'pip install -e ".[{extra}]"'
    return f'pip install -e "{root}[{extra}]"'


LONGEST_NAME = 64
"""Most characters of a name that is compared: difflib's time grows with their cube."""
TRIED = 8
"""Most names that difflib compares: those with the most letters in common with the misspelt one."""


def nearest(name: str, known: Iterable[str], most: int = 1, least: float = 0.6) -> list[str]:
    """Return up to `most` known names with a similarity of at least `least` (1: equal), best first.

    The similarity is that of difflib.get_close_matches.
    """
    if not 0 < len(name) <= LONGEST_NAME:
        return []
    letters = Counter(name)

    def common(other: str) -> float:
        """Return an upper bound of the similarity, from the letters alone."""
        return 2 * sum((letters & Counter(other)).values()) / (len(name) + len(other))

    scored = ((common(other), other) for other in known if len(other) <= LONGEST_NAME)
    likely = nlargest(TRIED, (pair for pair in scored if pair[0] >= least))
    return get_close_matches(name, [other for _, other in likely], most, least)
