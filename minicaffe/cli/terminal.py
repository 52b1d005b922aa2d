"""Output to stdout and stderr, with control characters escaped.

Names and texts come from untrusted files; their escape sequences could set a terminal's title or reverse lines. Commands print
with `echo`. While a command runs, sys.stdout and sys.stderr are Guarded, for what others print (click, tracebacks, libraries).
Tables and bars use console.PlainConsole.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, TextIO, cast

import click

from minicaffe.errors import shortened, written_out


def echo(text: str = "", *, nl: bool = True, err: bool = False, **style: Any) -> None:
    """Print text on stdout or stderr, escaped. style: click.style's arguments, used on terminals only."""
    stream = sys.stderr if err else sys.stdout
    text = written_out(text)
    if style and stream.isatty():
        text, stream = click.style(text, **style), unguarded(stream)  # escaped already; the guard would escape the style too
    click.echo(text, stream, nl, color=True)


command = logging.getLogger("minicaffe.command")
"""What commands say on stderr besides errors: notes (INFO) and warnings."""
OWN_HANDLERS = ("minicaffe.command", "minicaffe.solver", "minicaffe.tool")
"""Loggers whose records are shown in other ways, also with -v."""


def inform(text: str) -> None:
    """Print a line on stderr, which -q leaves out."""
    command.info("%s", written_out(text))  # escaped in the record, too: other handlers get it


def warn(message: str) -> None:
    """Print a warning on stderr."""
    command.warning("%s", shortened(f"WARNING: {message}"))


def is_quiet() -> bool:
    """Return whether notes and progress are left out."""
    return command.level > logging.INFO


@contextmanager
def saying(level: int) -> Iterator[None]:
    """In the block, show the records of commands from this level on, on stderr; with DEBUG also those of all other loggers."""
    package = logging.getLogger("minicaffe")
    levels, handlers = (command.level, package.level), (command.handlers[:], package.handlers[:])
    if not any(isinstance(handler, _Stderr) for handler in command.handlers):
        command.addHandler(_Stderr())
    command.setLevel(level)
    if level == logging.DEBUG:
        others = _Stderr()
        others.addFilter(lambda record: not record.name.startswith(OWN_HANDLERS))
        package.addHandler(others)
        package.setLevel(level)
    try:
        yield
    finally:
        command.handlers[:], package.handlers[:] = handlers
        command.setLevel(levels[0])
        package.setLevel(levels[1])


class _Stderr(logging.Handler):
    """Shows records on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        style: dict[str, Any] = {"fg": "yellow", "bold": True} if record.levelno >= logging.WARNING else {}
        echo(record.getMessage(), err=True, **style)


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
        return len(text)  # the caller's length, not the escaped one

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
        # If a pipe's reader is gone, keep click's replacement or the guard: Python flushes the streams at exit.
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
