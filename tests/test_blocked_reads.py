"""A data layer whose read never returns (a network file system that does not answer) keeps no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows sends a process no SIGINT")

PROGRAM = """
import os, sys
from minicaffe.layers.image_data import ImageListSource
read, count = ImageListSource._read, 0

def blocks(self, name):
    global count
    count += 1
    if count > 5:
        os.write(1, b"blocked\\n")
        os.read(os.pipe()[0], 1)
    return read(self, name)

ImageListSource._read = blocks
from minicaffe.cli import main
main(sys.argv[1:])
"""
NET = """
layer { name: "data" type: "ImageData" top: "x" top: "label" image_data_param { source: "list.txt" batch_size: 1 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "label" top: "loss" }
"""


@contextmanager
def blocked(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command whose prefetch thread is in a read that does not return."""
    Image.new("RGB", (6, 4)).save(folder / "one.png")
    (folder / "list.txt").write_text("one.png 1\n")
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" snapshot_prefix: "s"')
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        assert any("blocked" in line for line in process.stdout)
        yield process
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGINT, 1, ["time", "net.prototxt", "--iterations", "9"]),
        (signal.SIGTERM, 143, ["time", "net.prototxt", "--iterations", "9"]),
    ],
)
def test_one_signal_ends_a_command(tmp_path: Path, number: int, status: int, words: list[str]) -> None:
    with blocked(tmp_path, *words) as process:
        process.send_signal(number)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == status, rest
        assert "Traceback" not in rest


def test_the_second_ctrl_c_ends_a_training(tmp_path: Path) -> None:
    """The first lets the iteration end, as always: it waits for its batch."""
    with blocked(tmp_path, "train", "solver.prototxt", "--iterations", "99") as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert any("Ctrl-C again ends at once" in line for line in process.stdout)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode == 1, rest
        assert "Traceback" not in rest
