"""What never returns keeps no process: a data layer's read (a network file system that does not answer), an ONNX model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minicaffe.porting.onnx.session import Session

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows sends a process no SIGINT")

PROGRAM = """
import os, sys, threading, time
from minicaffe.data import prefetch
from minicaffe.layers.data.image_data import ImageListSource
read, count = ImageListSource._read, 0

def waits():
    "Whether the main thread waits for a batch, and none is left."
    frame, names = sys._current_frames()[threading.main_thread().ident], set()
    while frame:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return {"take", "wait"} <= names and prefetch._running[threading.current_thread()][0].empty()

def blocks(self, name):
    global count
    count += 1
    if count > 5:
        while not waits():
            time.sleep(0.01)
        os.write(1, b"blocked\\n")
        os.read(os.pipe()[0], 1)
    return read(self, name)

ImageListSource._read = blocks
from minicaffe.cli import main
main(sys.argv[1:])
"""
RUNS = """
import os, sys, threading
from minicaffe.porting.onnx.session import Session
run = Session.run

def runs(self, inputs):
    threading.Timer(0.3, os.write, (1, b"blocked\\n")).start()
    return run(self, inputs)

Session.run = runs
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
    with started(folder, PROGRAM, *words) as process:
        yield process


@contextmanager
def started(folder: Path, program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command that has written "blocked"."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MINICAFFE_LOOPS": "numpy"},  # to import Numba takes a second
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(120, process.kill)
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
        pytest.param(signal.SIGINT, 130, ["time", "net.prototxt", "--iterations", "9"], marks=pytest.mark.slow),
        (signal.SIGTERM, 143, ["time", "net.prototxt", "--iterations", "9"]),
    ],
)
def test_one_signal_ends_a_command(tmp_path: Path, number: int, status: int, words: list[str]) -> None:
    with blocked(tmp_path, *words) as process:
        process.send_signal(number)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == status, rest
        assert "Traceback" not in rest


@pytest.mark.slow
def test_the_second_ctrl_c_ends_a_training(tmp_path: Path) -> None:
    """The first lets the iteration end, as always: it waits for its batch."""
    with blocked(tmp_path, "train", "solver.prototxt", "--iterations", "99") as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert any("Ctrl-C again ends at once" in line for line in process.stdout)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 130, rest
        assert "Traceback" not in rest


def never_ends(folder: Path) -> Path:
    """A model of a Loop of 2^62 rounds."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    of = onnx.helper
    item = of.make_tensor_value_info
    kinds = onnx.TensorProto
    nodes = [of.make_node("Identity", ["go"], ["on"]), of.make_node("Add", ["x", "x"], ["sum"])]
    inside = [item("i", kinds.INT64, []), item("go", kinds.BOOL, []), item("x", kinds.FLOAT, None)]
    body = of.make_graph(nodes, "body", inside, [item("on", kinds.BOOL, []), item("sum", kinds.FLOAT, None)])
    loop = of.make_node("Loop", ["rounds", "", "data"], ["out"], body=body)
    rounds = of.make_tensor("rounds", kinds.INT64, [], [1 << 62])
    ends = [item("data", kinds.FLOAT, [1, 2])], [item("out", kinds.FLOAT, None)]
    graph = of.make_graph([loop], "graph", *ends, initializer=[rounds])
    model = of.make_model(graph, opset_imports=[of.make_opsetid("", 17)], ir_version=9)
    (folder / "loop.onnx").write_bytes(model.SerializeToString())
    return folder / "loop.onnx"


def test_a_signal_ends_an_onnx_model_that_never_does(tmp_path: Path) -> None:
    """And the thread that runs it."""
    session = Session(never_ends(tmp_path))
    signalled = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    signalled.start()
    with pytest.raises(KeyboardInterrupt):
        session.run({"data": np.ones((1, 2), np.float32)})
    signalled.join()
    for thread in threading.enumerate():
        if thread.name == "minicaffe-onnx":
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_the_command_of_a_model_that_never_does(tmp_path: Path, number: int, status: int) -> None:
    """As a process of its own, which imports onnxruntime."""
    never_ends(tmp_path)
    (tmp_path / "net.prototxt").write_text(
        'input: "data" input_shape { dim: 1 dim: 2 } layer { name: "relu" type: "ReLU" bottom: "data" top: "out" }'
    )
    with started(tmp_path, RUNS, "compare", "net.prototxt", "loop.onnx") as process:
        process.send_signal(number)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == status, rest
        assert "Traceback" not in rest
