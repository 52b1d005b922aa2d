"""A table of forks' fields for tests, in place of formats/forks.py's: one field of each class, wherever a field may stand."""

from __future__ import annotations

import pytest

from minicaffe.formats import hints, skipped
from minicaffe.formats.forks import Effect, ForkField

HOW = "rounds the pooled size down"


def use_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add two fields to every message: fork_quiet has no effect, fork_loud changes the numbers unless it is 1 or false."""

    def fork_field(message: str, name: str) -> ForkField | None:
        if name == "fork_quiet":
            return ForkField(message, name, ("A's Caffe",), Effect.NONE)
        if name == "fork_loud":
            return ForkField(message, name, ("A's Caffe", "B's Caffe"), Effect.NOT_BUILT, HOW, ("1", "false"))
        return None

    for module in (hints, skipped):
        monkeypatch.setattr(module, "fork_field", fork_field)
