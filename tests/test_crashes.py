"""Files are written whole or not at all: commands that are killed, and disks that are full (a limit on the length of files)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from minicaffe.cli import main

resource = pytest.importorskip("resource", reason="this system has no limits on the length of files")
ROOT = Path(__file__).resolve().parents[1]
RFCN = ROOT / "examples" / "shapes" / "rfcn"
NET = [str(RFCN / "test.prototxt"), str(RFCN / "shapes_rfcn.caffemodel")]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(
    ("times", "more"),
    [
        (2, ["--commands", "upgrade", "dump"]),
        pytest.param(12, ["--seed", str(random.randrange(10**6))], marks=pytest.mark.slow),
    ],
    ids=["two", "all"],
)
def test_commands_that_are_stopped_leave_the_old_file_or_the_whole_new_one(times: int, more: list[str]) -> None:
    """Killed and interrupted at some moment; all twelve commands take long."""
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    pytest.importorskip("onnx", reason="the extra minicaffe[onnx] is not installed")
    script = Path(__file__).parent / "support" / "kill_commands.py"
    memory = Path("/dev/shm")
    environment = {**os.environ, **({"TMPDIR": str(memory)} if memory.is_dir() else {})}
    command = [sys.executable, str(script), "--times", str(times), *more]
    command += ["--signals", "kill", "interrupt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    for sent in (" kill ", " interrupt "):
        ends = [line for line in done.stdout.splitlines() if sent in line]
        assert sum("as before" in line or "the whole new one" in line for line in ends) == times


@pytest.fixture
def on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in tmp_path, where no file can be longer than `most` bytes."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, most: int = 20_000) -> Result:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            done = CliRunner().invoke(main, words)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done

    return run


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("net.onnx", ["export", *NET, "-o", "net.onnx"]),
        ("page.html", ["trace", *NET, "--shape", "data=1,3,60,80", "-o", "page.html"]),
        ("arrays.npz", ["dump", NET[1], "-o", "arrays.npz"]),
        ("net.svg", ["draw", NET[0], "-o", "net.svg"]),
        ("copy.caffemodel", ["upgrade", NET[1], "copy.caffemodel"]),
    ],
)
def test_a_full_disk_leaves_the_old_file(
    on_a_full_disk: Callable[..., Result], tmp_path: Path, output: str, words: list[str]
) -> None:
    if words[0] == "export":
        pytest.importorskip("onnx", reason="the extra minicaffe[onnx] is not installed")
    (tmp_path / output).write_text("an older one")
    done = on_a_full_disk(*words)
    assert done.exit_code == 1, done.output
    assert f"{output}: cannot be written: File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [output]
    assert (tmp_path / output).read_text() == "an older one"


def test_a_full_disk_leaves_no_database(on_a_full_disk: Callable[..., Result], tmp_path: Path) -> None:
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    from PIL import Image

    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "one.png")
    (tmp_path / "list.txt").write_text("one.png 0\n" * 50)
    done = on_a_full_disk("convert-imageset", "./", "list.txt", "db", most=100_000)
    assert done.exit_code == 1, done.output
    assert "db: cannot be written" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list.txt", "one.png"]


def test_a_full_disk_keeps_the_last_snapshot(on_a_full_disk: Callable[..., Result], tmp_path: Path) -> None:
    """The second snapshot does not fit; the first is whole, and training goes on from it."""
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {\n'
        'shape { dim: 2 dim: 30 } shape { dim: 2 dim: 40 } data_filler { type: "gaussian" }\n'
        'data_filler { type: "gaussian" } } }\n'
        'layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 40 } }\n'
        'layer { name: "loss" type: "EuclideanLoss" bottom: "f" bottom: "t" }\n'
    )
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 2 snapshot: 1 snapshot_prefix: "snap"'
    )
    done = on_a_full_disk("train", "solver.prototxt", "--iterations", "1", most=1_000_000)
    assert done.exit_code == 0, done.output
    done = on_a_full_disk("train", "solver.prototxt", "--snapshot", "latest", most=3_000)
    assert done.exit_code == 1
    assert "snap_iter_2.caffemodel: cannot be written: File too large" in done.stderr
    assert not list(tmp_path.glob("*iter_2*"))
    done = on_a_full_disk("train", "solver.prototxt", "--snapshot", "latest", most=1_000_000)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "snap_iter_2.solverstate").exists()


HDF5_WRITERS = """
import resource, signal
import numpy as np
import h5py
from minicaffe import Error, Net, TEST
from minicaffe.formats.prototxt import parse_net
from minicaffe.training.snapshots import TrainingState, write_state

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
net = Net(parse_net('input: "x" input_shape { dim: 1 dim: 100 } layer { name: "f" type: "InnerProduct" bottom: "x" top: "y"'
    ' inner_product_param { num_output: 300 } }'), TEST)
rows = Net(parse_net('input: "x" input_shape { dim: 50 dim: 100 } input: "y" input_shape { dim: 50 }'
    ' layer { name: "o" type: "HDF5Output" bottom: "x" bottom: "y" hdf5_output_param { file_name: "rows.h5" } }'), TEST)
net.save("w.h5")
rows.blobs["x"].data[...] = 1
rows.forward()
rows.blobs["x"].data[...] = 2
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
for write in (
    lambda: net.save("w.h5"),
    lambda: write_state("s.solverstate.h5", TrainingState(1, "w.h5", 0, [np.ones(30_000, np.float32)])),
    rows.forward,
):
    try:
        write()
    except Error as error:
        print(error)
with h5py.File("rows.h5") as file:
    print(file["data"].shape, file["label"].shape, file["data"][...].max())
"""


@pytest.mark.slow
def test_a_full_disk_ends_no_writer_of_hdf5(tmp_path: Path) -> None:
    """HDF5's own writing ends the process; rows that do not fit leave the earlier ones."""
    pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    done = subprocess.run([sys.executable, "-c", HDF5_WRITERS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    weights, state, rows, left = done.stdout.splitlines()
    assert weights == "w.h5: cannot be written: File too large"
    assert state == "s.solverstate.h5: cannot be written: File too large"
    assert rows == 'HDF5Output layer "o": cannot write rows.h5: File too large (<text>:1)'
    assert left == "(50, 100, 1, 1) (50, 1, 1, 1) 1.0"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.h5", "w.h5"]
