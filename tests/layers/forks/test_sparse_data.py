"""SparseData."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, net_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from minicaffe.data.database import new_database
from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def item(indices: Sequence[int], data: Sequence[float], *, label: float = 0, size: int = 4, nnz: int | None = None) -> bytes:
    datum = caffe_pb2.SparseDatum(size=size, nnz=len(data) if nnz is None else nnz, indices=indices, data=data, label=label)
    return datum.SerializeToString()


ITEMS = [item([3], [5], label=1), item([], [], label=2), item([0, 2, 0], [1, -2, 4], label=0.5)]


def text(*items: bytes, tops: str = 'top: "data" top: "label"', more: str = "batch_size: 2") -> str:
    with new_database("made", "lmdb") as database:
        for i, value in enumerate(items):
            database.put(f"{i:08d}".encode(), value)
    return f'layer {{ name: "in" type: "SparseData" {tops} data_param {{ source: "made" backend: LMDB {more} }} }}'


def test_rows_are_dense_and_go_around() -> None:
    """An index that comes twice adds up, as in the product with the weights."""
    taken = batches(net_of(text(*ITEMS)), 2)
    assert taken[0][0].tolist() == [[0, 0, 0, 5], [0, 0, 0, 0]] and taken[0][1].tolist() == [1, 2]
    assert taken[1][0].tolist() == [[5, 0, -2, 0], [0, 0, 0, 5]] and taken[1][1].tolist() == [0.5, 1]


def test_without_labels_and_with_numbers_beyond_nnz() -> None:
    net = net_of(text(item([1, 9], [3, 3], nnz=1), tops='top: "data"', more="batch_size: 1"))
    assert batches(net, 1)[0][0].tolist() == [[0, 3, 0, 0]]


@given(arrays(np.float32, (3, 5), elements=st.sampled_from([0.0, 0.0, 1.5, -2.0, 2.0**100])))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_stored_sparse_is_read_dense(rows: np.ndarray) -> None:
    shutil.rmtree("made", ignore_errors=True)
    items = [item(np.flatnonzero(row).tolist(), row[row != 0].tolist(), size=5) for row in rows]
    np.testing.assert_array_equal(batches(net_of(text(*items, more="batch_size: 3")), 1)[0][0], rows)


@pytest.mark.parametrize("phase", [TEST, TRAIN])
def test_it_repeats_and_resumes(phase: int) -> None:
    check_repeats_and_resumes(text(*ITEMS), phase, 2)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([item([4], [1])], "an index is not in 0 to 3, its size being 4"),
        ([item([-1], [1])], "an index is not in 0 to 3"),
        ([item([1], [1], nnz=2)], "nnz is 2, but 1 numbers are stored"),
        ([item([1], [1], nnz=-1)], "nnz is -1, but 1 numbers are stored"),
        ([item([1], [1]), item([1], [1], size=6)], "its size is 6, the batch's first item's 4"),
        ([item([], [], size=0)], "its size must be > 0, got 0"),
        ([b"\xff\xff"], "not a SparseDatum"),
    ],
)
def test_errors(items: list[bytes], message: str) -> None:
    with pytest.raises(LayerError, match=f'SparseData layer "in": .*{message}'):
        net_of(text(*items)).forward()


def test_error_of_a_batch_without_size() -> None:
    with pytest.raises(LayerError, match="batch_size must be > 0, got 0"):
        net_of(text(*ITEMS, more=""))
