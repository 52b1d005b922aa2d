"""What the benchmark of detection on Ray reckons with: rates, the pictures of lines, processes and their memory."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module(f"benchmarks.{name}")


def test_a_rate_leaves_start_and_end_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two beginnings: 3 parts in 2 seconds and 2 in 3, of 50 images each; the first part of a beginning sets the clock."""
    scale_ray = module("scale_ray", monkeypatch)
    first = [(s, parts, 100.0, 1) for s, parts in [(0, 0), (1, 0), (9, 1), (10, 1), (10.5, 3), (11, 4), (30, 4)]]
    second = [(s, parts, 100.0, 1) for s, parts in [(0, 4), (5, 5), (8, 7), (20, 7)]]
    log = tmp_path / "log"
    log.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    assert scale_ray.rate(log) == pytest.approx(50 * 5 / 5)
    assert scale_ray.curve(log) == [(50 * n, 100.0) for n in (1, 1, 3, 5)]


def test_lines_are_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = module("_lines", monkeypatch).lines({"a & b": [(0, 10), (50, 40)], "c": [(100, 20)]}, "images", "MB")
    root = ElementTree.fromstring(picture)
    found = [line.attrib["points"] for line in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(found) == 2
    assert found[1].startswith("620.0,")  # the largest x, at the right edge
    assert "a &amp; b" in picture


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="this system has no /proc as Linux's")
def test_processes_below_one_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = module("_processes", monkeypatch)
    code = "import sys; x = bytearray(b'1') * 50_000_000; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert "bytearray" in processes.below(os.getpid())[child.pid]
        assert 50 < processes.megabytes(child.pid) < 100
        child.kill()
    assert processes.megabytes(child.pid) == 0
