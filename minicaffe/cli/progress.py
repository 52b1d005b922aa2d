"""A progress bar on a terminal; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")


def counted(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The items, with a bar on stderr that counts them."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from .console import bar

    total = len(items) if isinstance(items, Sized) else total
    shown = bar(MofNCompleteColumn(), TextColumn(what), BarColumn(), TimeRemainingColumn())
    if shown is None:
        yield from items
        return
    with shown:
        yield from shown.track(items, total=total)
