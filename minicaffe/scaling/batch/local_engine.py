"""Parts one after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .detector import Detector
from .folder import Folder
from .parts import Done, Part, do_part


def run_local(detector: Detector, parts: Iterable[Part], folder: Folder, tell: Callable[[Done], object]) -> None:
    """Do all parts. tell: called after each image."""
    for part in parts:
        do_part(detector, part, folder, tell)
