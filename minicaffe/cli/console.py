"""Rich's Console for tables and progress bars, which treats all text as plain text."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderHook
from rich.file_proxy import FileProxy
from rich.segment import Segment
from rich.text import Text

from minicaffe.errors import written_out

from .terminal import Guarded, fitted, is_quiet, unguarded

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


class PlainConsole(Console):
    """A console on stdout, or with err on stderr. No markup, emoji or links; only Text, tables and bars have styles.

    Text is escaped (errors.written_out) when it is rendered.
    """

    def __init__(self, *, err: bool = False, **options: Any) -> None:
        stream = unguarded(sys.stderr if err else sys.stdout)
        super().__init__(**{"file": stream, **options}, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(self._shown(text), **options)  # before table cells are measured

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment  # Rich's own cursor movements
            else:
                style = segment.style.update_link(None) if segment.style and segment.style.link else segment.style
                yield Segment(self._shown(segment.text), style)

    def push_render_hook(self, hook: RenderHook) -> None:
        """Also guard the proxies with which a live bar replaces the streams: they obey escape sequences."""
        super().push_render_hook(hook)
        for name in ("stdout", "stderr"):
            if isinstance(stream := getattr(sys, name), FileProxy):
                setattr(sys, name, Guarded(cast(TextIO, stream)))

    def _shown(self, text: str) -> str:
        return fitted(written_out(text), self.file)


def bar(*columns: str | ProgressColumn) -> Progress | None:
    """Return a progress bar on stderr, or None with -q and if stderr is no terminal. Other output appears above it."""
    from rich.progress import Progress

    console = PlainConsole(err=True)
    return (
        Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty())
        if console.file.isatty() and not is_quiet()  # FORCE_COLOR makes is_terminal true
        else None
    )
