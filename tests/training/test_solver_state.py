"""HDF5 .solverstates: what they may hold, and what is not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicaffe import limits
from minicaffe.errors import LimitError, WeightsError
from minicaffe.porting import dump
from minicaffe.training.snapshots import RUNNING_NAME, TrainingState, read_state, write_state

h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")

STATE = TrainingState(7, "net.caffemodel.h5", 2, [np.ones((2, 3), np.float32)], b"{}")
LISTS = np.empty(1, h5py.vlen_dtype(np.int32))
LISTS[0] = np.array([3, 4], np.int32)
MEMBERS = ("iter", "current_step", "learned_net", "history/0", RUNNING_NAME)


def replaced(folder: Path, name: str, fill: Callable[[Any, str], object]) -> Path:
    """A state in which one member is another."""
    path = folder / "s.solverstate.h5"
    write_state(path, STATE)
    with h5py.File(path, "r+") as file:
        del file[name]
        fill(file, name)
    return path


def linked(file: Any, name: str) -> None:
    file[name] = h5py.ExternalLink("other.h5", f"/{name}")


def virtual(file: Any, name: str) -> None:
    layout = h5py.VirtualLayout((3,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", name, (3,), "u1")
    file.create_virtual_dataset(name, layout)


def external(file: Any, name: str) -> None:
    file.create_dataset(name, (12,), "u1", external=[("/etc/passwd", 0, 12)])


@pytest.mark.parametrize("fill", [linked, virtual, external])
@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_stored_elsewhere_is_not_read(tmp_path: Path, name: str, fill: Callable[[Any, str], object]) -> None:
    write_state(tmp_path / "other.h5", STATE)
    path = replaced(tmp_path, name, fill)
    for read in (read_state, dump.read):
        with pytest.raises(WeightsError, match=f"s.solverstate.h5: /{name}: not a dataset stored in this file"):
            read(path)


def test_a_history_of_another_file(tmp_path: Path) -> None:
    write_state(tmp_path / "other.h5", STATE)
    with pytest.raises(WeightsError, match="has no /history and /iter"):
        read_state(replaced(tmp_path, "history", linked))


@pytest.mark.parametrize("name", MEMBERS)
def test_declared_sizes_are_checked_before_reading(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = {"learned_net": "S4", "history/0": "f4"}.get(name, "u1")
    path = replaced(tmp_path, name, lambda file, name: file.create_dataset(name, (1 << 32,), kind, chunks=(1 << 24,)))
    monkeypatch.setattr(limits, "bytes", 1 << 24)
    for read in (read_state, dump.read):
        with pytest.raises(WeightsError, match=rf"/{name}: shape \(4294967296,\) needs \d+ bytes, but 0 are stored"):
            read(path)


def test_more_bytes_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(file: Any, name: str) -> None:
        file.create_dataset(name, data=np.zeros(5000, np.uint8), compression="gzip")

    path = replaced(tmp_path, RUNNING_NAME, fill)
    assert read_state(path).running == bytes(5000)
    monkeypatch.setattr(limits, "bytes", 4999)
    with pytest.raises(LimitError, match=rf"/{RUNNING_NAME}: .* bytes, and the limit is 4,999: .* --limit bytes=N"):
        read_state(path)


@pytest.mark.parametrize("text", [np.bytes_("net.caffemodel"), np.array([b"net.caffemodel"])])
def test_one_text_with_and_without_an_axis(tmp_path: Path, text: Any) -> None:
    state = read_state(replaced(tmp_path, "learned_net", lambda file, name: file.create_dataset(name, data=text)))
    assert (state.iteration, state.learned_net, state.current_step, state.running) == (7, "net.caffemodel", 2, b"{}")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("iter", [3, 4], r"/iter has shape \(2,\), not one integer"),
        ("iter", b"a", "/iter: holds .* values, not numbers"),
        ("learned_net", np.array([b"a", b"b"]), r"/learned_net: holds .* values of shape \(2,\), not one text"),
        ("learned_net", LISTS, "/learned_net: a text of variable length, which is not read"),
        ("learned_net", "net.caffemodel", "/learned_net: a text of variable length, which is not read: write it by h5py"),
        ("learned_net", [3], "/learned_net: holds int64 values, not text"),
    ],
)
def test_errors(tmp_path: Path, name: str, values: Any, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_state(replaced(tmp_path, name, lambda file, name: file.create_dataset(name, data=values)))
