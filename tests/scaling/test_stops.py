"""Ctrl-C and SIGTERM in a run: what raises, what waits, and that handlers are put back."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from forked import forked, needs_fork
from PIL import Image

from minicaffe.cli import main
from minicaffe.formats.weights import write_binaryproto
from minicaffe.scaling.stops import Terminated, exit_status, held_back, sigterm_stops


def test_sigterm_is_a_stop_inside_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as stop, sigterm_stops():
        signal.raise_signal(signal.SIGTERM)
    assert (exit_status(stop.value), exit_status(KeyboardInterrupt())) == (143, 130)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_stop_waits_for_the_end(number: int, wanted: type[BaseException]) -> None:
    """Also if the block then sets another handler, as Ray does."""
    steps = []
    with pytest.raises(KeyboardInterrupt) as stop, sigterm_stops():
        with held_back():
            signal.raise_signal(number)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            steps.append("end of the block")
        steps.append("after it")
    assert stop.type is wanted
    assert steps == ["end of the block"]


def test_a_second_stop_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    steps = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        steps.append("one")
        signal.raise_signal(signal.SIGINT)
        steps.append("two")
    assert steps == ["one"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_stop_nothing_changes() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with sigterm_stops(), held_back():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_catches_no_signals() -> None:
    done = []

    def run() -> None:
        with sigterm_stops(), held_back():
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [1]


@needs_fork
@pytest.mark.parametrize(
    ("amid", "words"),
    [
        ("os.fsync", ["dump", "mean.binaryproto", "-o", "old.npz"]),
        ("shutil.copyfileobj", ["dump", "mean.binaryproto", "-o", "/dev/stdout"]),
        ("os.fsync", ["export", "net.prototxt", "-o", "old.onnx"]),
        ("minicaffe.data.database_lmdb.LmdbWriter.put", ["convert-imageset", "./", "list.txt", "db"]),
    ],
    ids=["a file", "to a pipe", "several files", "a database"],
)
def test_sigterm_amid_writing_leaves_nothing_unfinished(tmp_path: Path, amid: str, words: list[str]) -> None:
    """The signal comes at a moment when a temporary file or folder is there."""
    pytest.importorskip("onnx" if "export" in words else "lmdb" if "db" in words else "numpy")
    folder, temporary = tmp_path / "work", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    write_binaryproto(folder / "mean.binaryproto", np.ones((3, 4, 5)))
    (folder / "net.prototxt").write_text(
        'input: "x" input_shape { dim: 1 dim: 2 } layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'
    )
    (folder / "list.txt").write_text("one.png 1\n")
    Image.new("RGB", (6, 4)).save(folder / "one.png")
    for name in ("old.npz", "old.onnx"):
        (folder / name).write_text("old")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def run() -> None:
        tempfile.tempdir = str(temporary)
        os.dup2(os.pipe()[1], 1)
        pytest.MonkeyPatch().setattr(amid, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        main(words)

    done = forked(run, folder)
    assert done.status == 143, done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(temporary.iterdir()) == []
