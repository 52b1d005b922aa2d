"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")


def counted(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, counted on stderr as they are taken."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from .console import PlainConsole

    total = len(items) if isinstance(items, Sized) else total
    console = PlainConsole(err=True)
    if not console.is_terminal:
        yield from items
        return
    with Progress(MofNCompleteColumn(), TextColumn(what), BarColumn(), TimeRemainingColumn(), console=console) as bar:
        yield from bar.track(items, total=total)
