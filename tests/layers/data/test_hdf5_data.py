"""HDF5Data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, net_of, run_batches
from golden import cases
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import limits
from minicaffe.data import prefetch
from minicaffe.errors import DataError, LayerError
from minicaffe.mode import TEST, TRAIN

h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")


def write(name: str, first: int, rows: int, **more: np.ndarray) -> None:
    """A file with `data` (rows, 2, 3) of float64 and `label` (rows,) of int32: first, first + 1, ..."""
    labels = np.arange(first, first + rows)
    with h5py.File(name, "w") as file:
        file["data"] = labels[:, None, None] * np.ones((rows, 2, 3))
        file["label"] = labels.astype(np.int32)
        for key, values in more.items():
            del file[key]
            file[key] = values


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with files of 4 and 3 rows and a list of both."""
    monkeypatch.chdir(tmp_path)
    write("a.h5", 0, 4)
    write("b.h5", 4, 3)
    (tmp_path / "list.txt").write_text("a.h5\nb.h5\n")
    yield tmp_path
    prefetch._end_all()  # a thread of this test would read the next one's files: their names are relative


def text(batch: int = 2, more: str = "", tops: tuple[str, ...] = ("data", "label")) -> str:
    named = " ".join(f'top: "{top}"' for top in tops)
    return (
        f'layer {{ name: "in" type: "HDF5Data" {named}\nhdf5_data_param {{ source: "list.txt" batch_size: {batch} {more} }} }}'
    )


@pytest.mark.parametrize("case", cases("HDF5Data"))
def test_golden(case: str) -> None:
    assert run_batches(case, 0)


@given(st.integers(1, 16), st.integers(1, 4))
def test_rows_in_order_over_the_files_and_again(batch: int, count: int) -> None:
    taken = batches(net_of(text(batch)), count)
    labels = np.concatenate([labels for _, labels in taken])
    np.testing.assert_array_equal(labels, np.arange(batch * count) % 7)
    assert taken[0][0].shape == (batch, 2, 3)
    np.testing.assert_array_equal(np.concatenate([data for data, _ in taken])[:, 1, 2], labels)


def test_shuffling_shows_each_row_once_around_and_keeps_files_together() -> None:
    taken = batches(net_of(text(7, "shuffle: true")), 30)
    orders = {tuple(labels.astype(int)) for _, labels in taken}
    assert len(orders) > 20
    for order in orders:
        assert sorted(order) == list(range(7))
        assert {frozenset(order[:4]), frozenset(order[:3])} & {frozenset(range(4)), frozenset(range(4, 7))}


@pytest.mark.parametrize(("phase", "batch"), [(TRAIN, 2), (TEST, 7), (TRAIN, 9)])
def test_a_seed_repeats_and_a_state_resumes(phase, batch: int) -> None:
    check_repeats_and_resumes(text(batch, "shuffle: true"), phase)


def test_one_file_shuffles_anew(folder: Path) -> None:
    (folder / "list.txt").write_text("a.h5")
    taken = batches(net_of(text(4, "shuffle: true")), 12)
    assert len({tuple(labels) for _, labels in taken}) > 4
    check_repeats_and_resumes(text(3, "shuffle: true"), TRAIN)


@pytest.mark.parametrize(
    ("listed", "layer", "message"),
    [
        (None, text(), "list.txt: no such file"),
        (" \n", text(), "list.txt: the list has no file"),
        ("none.h5", text(), "none.h5: damaged HDF5 file: .*No such file"),
        ("list.txt", text(), "list.txt: damaged HDF5 file"),
        ("a.h5", text(tops=("data", "mask")), 'a.h5: has no dataset "mask"; it has data, label'),
        ("uneven.h5", text(), 'uneven.h5: its datasets differ in length: "data" 3, "label" 2'),
        ("words.h5", text(), 'words.h5: dataset "label": holds .* values, not numbers'),
        ("scalar.h5", text(), r'scalar.h5: dataset "label" has shape \(\): it has no rows'),
        ("a.h5", text(0), r"batch_size must be > 0, got 0 \(data.prototxt:2\)"),
        ("a.h5", text().replace("hdf5_data", "transform_param { scale: 2 } hdf5_data"), "transforms nothing"),
    ],
)
def test_errors_at_setup(folder: Path, listed: str | None, layer: str, message: str) -> None:
    write("uneven.h5", 0, 3, label=np.zeros(2))
    write("words.h5", 0, 3, label=np.array([b"a", b"b", b"c"]))
    write("scalar.h5", 0, 3, label=np.float32(1))
    (folder / "list.txt").unlink()
    if listed is not None:
        (folder / "list.txt").write_text(listed)
    with pytest.raises(LayerError, match='HDF5Data layer "in": ' + message):
        net_of(layer)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("wide.h5", r'wide.h5: the rows of "data" have shape \(5,\), those of a.h5 \(2, 3\)'),
        ("none.h5", "none.h5: damaged HDF5 file: .*No such file"),
    ],
)
def test_errors_in_a_later_file(folder: Path, file: str, message: str) -> None:
    write("wide.h5", 0, 3, data=np.zeros((3, 5)))
    (folder / "list.txt").write_text(f"a.h5 {file}")
    net = net_of(text(4))
    net.forward()
    with pytest.raises(LayerError, match='HDF5Data layer "in": ' + message):
        net.forward()


def test_a_state_of_another_list_is_refused(folder: Path) -> None:
    state = net_of(text()).layers[0].training_state()
    (folder / "list.txt").write_text("a.h5")
    with pytest.raises(LayerError, match=r"the state to resume from does not fit: .*it was of 2 items, there are 1"):
        net_of(text()).layers[0].restore_training_state(state)


@pytest.mark.parametrize("top", ["data", "deep/data"])
def test_rows_of_another_file_are_read_in_no_way(top: str) -> None:
    write("secret.h5", 0, 5)
    with h5py.File("b.h5", "w") as file:
        file["label"] = np.arange(3)
        file[top.partition("/")[0]] = h5py.ExternalLink("secret.h5", "/data" if top == "data" else "/")
    with h5py.File("a.h5", "r+") as file:
        file["deep/data"] = np.ones((4, 2, 3))
    net = net_of(text(4, tops=(top, "label")))
    with pytest.raises(DataError, match=f'b.h5: dataset "{top}": not a dataset stored in this file'):
        net.layers[0].data_fingerprint()
    net.forward()
    with pytest.raises(LayerError, match=f'b.h5: dataset "{top}": not a dataset stored in this file'):
        net.forward()


def test_more_bytes_than_the_limit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "bytes", 100)
    with pytest.raises(LayerError, match=r'a.h5: dataset "data": together with .* has 192 bytes, .* --limit bytes=N'):
        net_of(text())
