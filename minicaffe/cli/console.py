"""Rich's Console as the commands use it, for tables and progress bars: text is text, whoever wrote it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from minicaffe.errors import written_out

from .terminal import fitted, unguarded


class PlainConsole(Console):
    """On stdout, or with err on stderr. No markup, emoji names or links; styles are those of Text, tables and bars.

    All text is written out (errors.written_out) as it is rendered.
    """

    def __init__(self, *, err: bool = False, **options: Any) -> None:
        stream = unguarded(sys.stderr if err else sys.stdout)
        super().__init__(**{"file": stream, **options}, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                style = segment.style.update_link(None) if segment.style and segment.style.link else segment.style
                yield Segment(fitted(written_out(segment.text), self.file), style)
