"""tests/fuzz/tally.py: runs of the fuzzers add up."""

from __future__ import annotations

from pathlib import Path

import tally


def test_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "tally.json"
    for name, seconds, inputs, found in (("npy", 3, 1000, 0), ("npz", 5, 70, 1), ("npy", 4, 200, 0)):
        tally.add(path, name, seconds, inputs, found)
    sums = tally.read(path)
    assert sums == {"npy": {"seconds": 7, "inputs": 1200, "found": 0}, "npz": {"seconds": 5, "inputs": 70, "found": 1}}
    assert tally.table(sums).splitlines()[2:] == ["| npy | 7 | 1,200 | 0 |", "| npz | 5 | 70 | 1 |", "| all | 12 | 1,270 | 1 |"]
    assert [file.name for file in tmp_path.iterdir()] == ["tally.json"]


def test_the_least_fuzzed_come_first() -> None:
    had = {"npy": {"seconds": 60}, "npz": {"seconds": 20}, "image": {"seconds": 61}}
    assert tally.short_of(had, ["npy", "image", "npz", "net"], 61) == ["net", "npz", "npy"]
