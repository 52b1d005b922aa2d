"""Output to stdout and stderr, with control characters escaped.

Names and texts come from untrusted files; their escape sequences could set a terminal's title or reverse lines. Commands print
with `echo`. While a command runs, sys.stdout and sys.stderr are Guarded, for what others print (click, tracebacks, libraries).
Tables and bars use console.PlainConsole.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, TextIO, cast

import click

from minicaffe.errors import written_out


def echo(text: str = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """Print text on stdout or stderr, escaped. style: click.style's arguments, used on terminals only."""
    stream = sys.stderr if err else sys.stdout
    text = written_out(text)
    if style and stream.isatty():
        text, stream = click.style(text, **style), unguarded(stream)  # escaped already; the guard would escape the style too
    click.echo(text, stream, nl, color=True)


class Guarded:
    """A text stream that escapes what is written to it.

    dropping: whether text is dropped, instead of raising BrokenPipeError, once the stream's reader is gone.
    """

    encoding = "utf-8"
    """The encoding of the text it accepts; characters outside the stream's encoding are escaped too."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.dropping = False
        self.gone: BrokenPipeError | None = None

    def write(self, text: str) -> int:
        with self._noticing():
            if self.gone is None:
                self.stream.write(fitted(written_out(text), self.stream))
        return len(text)  # what the caller wrote, not what became of it

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._noticing():
            if self.gone is None:
                self.stream.flush()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            if not self.dropping:
                raise
            self.gone = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def fitted(text: str, stream: IO[str]) -> str:
    """Return text in which characters that the stream's encoding lacks are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream without its guard."""
    return stream.stream if isinstance(stream, Guarded) else stream


def finish_unread() -> None:
    """Let the command, which writes files, continue when the reader of its text is gone, as with `| head`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Guarded):
            stream.dropping = True


def check_read() -> None:
    """Raise BrokenPipeError if text has been dropped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Guarded) and stream.gone:
            raise stream.gone


@contextmanager
def guarded() -> Iterator[None]:
    """Guard sys.stdout and sys.stderr, and the traceback of an exception that leaves the block."""
    before = sys.stdout, sys.stderr
    guards = [Guarded(unguarded(stream)) for stream in before]
    sys.stdout, sys.stderr = streams = cast(list[TextIO], guards)
    try:
        yield
    except Exception:
        # Python prints the traceback after this block, when the guards are gone.
        sys.excepthook = _print_exception
        raise
    finally:
        # Where a pipe's reader is gone, click replaces the streams, or the guard stays: Python flushes them at its end.
        if sys.stdout is streams[0] and not guards[0].gone:
            sys.stdout = before[0]
        if sys.stderr is streams[1] and not guards[1].gone:
            sys.stderr = before[1]


@contextmanager
def without_guard() -> Iterator[None]:
    """Remove the guards, for a user's program."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(unguarded, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    echo("".join(traceback.format_exception(kind, error, trace)), nl=False, err=True)
