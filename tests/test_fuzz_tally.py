"""tests/fuzz/tally.py: runs of the fuzzers add up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tally


def test_runs_add_up(tmp_path: Path) -> None:
    path = tmp_path / "tally.json"
    for name, seconds, inputs, found in (("npy", 3, 1000, 0), ("npz", 5, 70, 1), ("npy", 4, 200, 0)):
        tally.add(path, name, seconds, inputs, found)
    sums = tally.read(path)
    assert sums == {"npy": {"seconds": 7, "inputs": 1200, "found": 0}, "npz": {"seconds": 5, "inputs": 70, "found": 1}}
    assert tally.table(sums).splitlines()[2:] == ["| `.npy` (`npy`) | 7 | 1,200 | nothing |", "| `.npz` (`npz`) | 5 | 70 | 1 |"]
    assert [file.name for file in tmp_path.iterdir()] == ["tally.json"]


def test_the_least_fuzzed_come_first() -> None:
    had = {"npy": {"seconds": 60}, "npz": {"seconds": 20}, "image": {"seconds": 61}}
    assert tally.short_of(had, ["npy", "image", "npz", "net"], 61) == ["net", "npz", "npy"]


def test_the_page_has_the_tallys_table() -> None:
    """If it lacks the table, run python tests/fuzz/tally.py."""
    page = tally.PAGE.read_text(encoding="utf-8")
    assert page == tally.with_table(page, tally.read(tally.TALLY))


def test_every_target_has_a_name_in_the_table() -> None:
    text = (tally.HERE / "targets.py").read_text(encoding="utf-8").partition("\nTARGETS = {")[2]
    targets = re.findall(r'^    "(\w+)": Target\(', text, re.MULTILINE)
    assert sorted(tally.READERS) == sorted(targets)
    assert set(tally.read(tally.TALLY)) <= set(targets)


def test_another_tally_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, found in (("mine", 0), ("other", 1)):
        tally.add(tmp_path / name, "npy", 60, 1000, found)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tally.BEGIN}old{tally.END}\nafter\n")
    monkeypatch.setattr(tally, "TALLY", tmp_path / "mine")
    monkeypatch.setattr(tally, "PAGE", page)
    tally.main([str(tmp_path / "other")])
    assert "| `.npy` (`npy`) | 120 | 2,000 | 1 |" in page.read_text()
    assert page.read_text().startswith("before\n<!-- fuzzing -->\n\n| reader") and page.read_text().endswith("-->\nafter\n")
