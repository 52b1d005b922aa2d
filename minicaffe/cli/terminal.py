"""The way to stdout and stderr: all that a command writes passes through here, and nothing but its own styles acts there.

Names and texts come from anyone's files: escape sequences in them would set a terminal's title or turn lines around. `echo` is
the commands' print; while a command runs, sys.stdout and sys.stderr are Guarded, for all that others print (click's messages,
tracebacks, libraries). Tables and bars are a console.PlainConsole's.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, TextIO, cast

import click

from minicaffe.errors import written_out


def echo(text: str = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """Print text on stdout or stderr, written out. style: click.style's, for terminals alone."""
    stream = sys.stderr if err else sys.stdout
    text = written_out(text)
    if style and stream.isatty():
        text, stream = click.style(text, **style), unguarded(stream)
    click.echo(text, stream, nl, color=True)


class Guarded:
    """A text stream to which everything is written out."""

    encoding = "utf-8"
    """Of what it takes; what the stream's own cannot hold is written out too."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write(fitted(written_out(text), self.stream))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def fitted(text: str, stream: IO[str]) -> str:
    """text with what the stream's encoding lacks written out."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def unguarded(stream: TextIO) -> TextIO:
    """The stream under a guard."""
    return stream.stream if isinstance(stream, Guarded) else stream


@contextmanager
def guarded() -> Iterator[None]:
    """A block in which sys.stdout and sys.stderr are guarded; so is the traceback of an exception that leaves it."""
    before = sys.stdout, sys.stderr
    guards = cast(tuple[TextIO, TextIO], tuple(Guarded(unguarded(stream)) for stream in before))
    sys.stdout, sys.stderr = guards
    try:
        yield
    except Exception:
        sys.excepthook = _print_exception
        raise
    finally:
        if sys.stdout is guards[0]:  # click puts another in its place when the reader of a pipe went away
            sys.stdout = before[0]
        if sys.stderr is guards[1]:
            sys.stderr = before[1]


@contextmanager
def without_guard() -> Iterator[None]:
    """A block with the streams themselves: for a user's own program."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(unguarded, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _print_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    echo("".join(traceback.format_exception(kind, error, trace)), nl=False, err=True)
