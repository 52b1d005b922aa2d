"""Memory stays flat: as traced over a few runs, and in short runs of tests/support/long_run.py."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import long_run
import numpy as np
import pytest
from long_run import SHAPES

from minicaffe import TEST, Net, kernels
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks for memory in Linux's way")


def shapes() -> Callable[[], object]:
    """Return a function that runs one detection, on images of three sizes in turn."""
    made = SHAPES / "rfcn"
    settings, sizes = read_settings(SHAPES / "shapes.yml"), cycle([(60, 80), (80, 60), (70, 70)])
    net = Net(made / "test.prototxt", TEST, weights=made / "shapes_rfcn.caffemodel")
    return lambda: detect(net, np.full((*next(sizes), 3), 99, np.uint8), settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [long_run.training, shapes])
def test_a_run_leaves_nothing(
    prepare: Callable[[], Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither objects nor arrays, beyond what is made once: a leak grows in each round, what other threads keep in one."""
    monkeypatch.chdir(tmp_path)
    held = []
    with kernels.using("numpy"):
        once = prepare()
        tracemalloc.start()
        try:
            for _ in range(5):
                for _ in range(3):
                    once()
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert min(np.diff(held)[1:]) < 4096


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path) -> None:
    """Run in a separate process, which takes long: memory of other tests would move the figure by more than GROWTH.

    By half-way most cached tables exist, which 20 sizes are too few for.
    """
    command = [sys.executable, long_run.__file__, "--training", "300", "--detections", "120"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "300 iterations of training",
        "120 detections of changing sizes",
    ]


def test_memory_that_grows_is_found() -> None:
    kept: list[bytearray] = []
    with pytest.raises(SystemExit, match="memory grows"):
        long_run.measure("runs", lambda: kept.append(bytearray(b"x" * 2**24)), 8)
