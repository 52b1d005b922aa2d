"""Blob: shapes, memory that reshape keeps, sharing, and where the contents are."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from minicaffe import Net
from minicaffe.blob import Blob, BlobList, MemoryState, SyncedMemory, Unchanged, current_version
from minicaffe.errors import BlobError, Error, LayerError
from minicaffe.formats.prototxt import parse_net


def test_memory_is_taken_at_first_use_and_zero() -> None:
    blob = Blob((2, 3))
    assert (blob.data_state, blob.diff_state) == (MemoryState.UNINITIALISED, MemoryState.UNINITIALISED)
    assert blob.data.dtype == np.float32
    assert not blob.data.any()
    assert (blob.data_state, blob.diff_state) == (MemoryState.HOST, MemoryState.UNINITIALISED)


def test_threads_that_use_it_first_have_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    blob, made, barrier = Blob((3, 2)), SyncedMemory._new_host, threading.Barrier(3, timeout=60)

    def slowly(memory: SyncedMemory) -> NDArray[Any]:
        time.sleep(0.05)
        return made(memory)

    def use(i: int) -> None:
        barrier.wait()
        blob.diff[i] = i + 1

    monkeypatch.setattr(SyncedMemory, "_new_host", slowly)
    users = [threading.Thread(target=use, args=[i]) for i in range(3)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert blob.diff.tolist() == [[1, 1], [2, 2], [3, 3]]


def test_data_and_diff_are_writable_views() -> None:
    blob = Blob((2, 3), np.float64)
    blob.data[1, 2] = 5
    blob.diff[0] = -1
    np.testing.assert_array_equal(blob.data, [[0, 0, 0], [0, 0, 5]])
    np.testing.assert_array_equal(blob.diff, [[-1, -1, -1], [0, 0, 0]])
    assert blob.diff.dtype == np.float64


def test_reshape_keeps_memory_that_fits() -> None:
    blob = Blob((2, 3))
    blob.data[...] = np.arange(6).reshape(2, 3)
    blob.reshape(4)
    np.testing.assert_array_equal(blob.data, [0, 1, 2, 3])
    blob.reshape([3, 2])
    np.testing.assert_array_equal(blob.data, [[0, 1], [2, 3], [4, 5]])
    blob.reshape(7)
    assert not blob.data.any()


@given(st.lists(st.integers(0, 5), max_size=5))
def test_count_is_the_product_of_any_shape(shape: list[int]) -> None:
    blob = Blob(shape)
    assert blob.count == blob.data.size == blob.diff.size
    assert blob.data.shape == blob.shape == tuple(shape)


def test_legacy_names() -> None:
    blob = Blob((2, 3, 5))
    assert (blob.num, blob.channels, blob.height, blob.width) == (2, 3, 5, 1)
    with pytest.raises(BlobError, match=r"need at most 4 axes; the blob has shape \(1, 2, 3, 4, 5\)"):
        _ = Blob((1, 2, 3, 4, 5)).num


def test_shared_memory_is_one() -> None:
    owner, other = Blob((2, 3)), Blob((3, 2))
    other.share_data(owner)
    other.data[...] = 4
    other.diff[...] = 9
    assert (owner.data == 4).all()
    assert not owner.diff.any()
    assert other.shares_data_with(owner)
    other.share_diff(owner)
    owner.diff[...] = 7
    assert (other.diff == 7).all()


def test_only_blobs_of_one_count_and_type_share() -> None:
    for other in (Blob((5,)), Blob((2, 3), np.float64)):
        for share in (Blob((2, 3)).share_data, Blob((2, 3)).share_diff):
            with pytest.raises(BlobError, match=r"blobs of shapes \(2, 3\) and .* cannot share memory"):
                share(other)


def test_shapes_that_no_blob_can_have() -> None:
    assert Blob((1,) * 31 + (2,)).data.ndim == 32
    with pytest.raises(BlobError, match=r"a blob has at most 32 axes, and shape \(1, .*, 2\) has 33"):
        Blob((1,) * 32 + (2,))
    with pytest.raises(BlobError, match=r"cannot have shape \(2, -1\): an axis is negative"):
        Blob((2, -1))
    with pytest.raises(Error, match="has 16000000000000000000000000000000000000 elements, more than the 2147483647"):
        Blob([2_000_000_000] * 4)


@pytest.mark.parametrize(
    "layer",
    [
        'type: "Input" input_param { shape { DIMS } }',
        'type: "DummyData" dummy_data_param { shape { DIMS } }',
        'type: "Parameter" parameter_param { shape { DIMS } }',
        'type: "Reshape" bottom: "x" reshape_param { shape { DIMS } }',
    ],
)
def test_layers_of_too_many_axes(layer: str) -> None:
    text = (
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } } layer { name: "y" LAYER top: "y" }'
    )
    for dims, shown in (("dim: 1 " * 64, r"\(1, 1, 1, \.\.\., 6\) has 65"), ("dim: -7 " * 10_000, r"\(-7, .* has 10001")):
        made = text.replace("LAYER", layer.replace("DIMS", dims + "dim: 6"))
        with pytest.raises(
            LayerError, match=rf'layer "y": a blob has at most 32 axes, and shape {shown} \(<text>:1\)'
        ) as found:
            Net(parse_net(made))
        assert len(str(found.value)) < 200


def test_a_layer_s_blobs_take_its_type() -> None:
    blobs = BlobList(np.float64)
    assert blobs.add_blob(2, 3) is blobs[0]
    assert (blobs[0].shape, blobs[0].dtype) == ((2, 3), np.float64)


def test_repr() -> None:
    assert repr(Blob((2, 3))) == "Blob(2 x 3, float32)"
    assert repr(Blob()) == "Blob(scalar, float32)"


def test_what_is_surely_unchanged() -> None:
    blobs = [Blob((2, 3)), Blob((4,))]
    assert not Unchanged(blobs).holds()  # without memory there is nothing to watch
    for blob in blobs:
        blob.data[...] = 1
    seen, both = Unchanged(blobs), Unchanged.joined([Unchanged(blobs[:1]), Unchanged(blobs[1:])])
    assert seen.holds() and both.holds()
    blobs[1].read_data()
    assert seen.holds()
    view = blobs[0].data_for_loops()  # loops only read this view
    assert seen.holds()
    assert not Unchanged(blobs).holds()  # but it can be written to
    assert not Unchanged.joined([Unchanged(blobs[1:]), Unchanged(blobs)]).holds()
    del view
    assert seen.holds()
    blobs[0].data[...] = 1
    assert not seen.holds() and not both.holds()


@pytest.mark.parametrize("change", [lambda blob: blob.reshape(3, 2), lambda blob: blob.share_data(written((2, 3)))])
def test_another_shape_or_memory_is_a_change(change: Any) -> None:
    blob = written((2, 3))
    seen = Unchanged([blob])
    change(blob)
    assert not seen.holds()


def test_a_view_from_before_may_be_written_to() -> None:
    blob = written((2, 3))
    view = blob.data
    seen = Unchanged([blob])
    view += 1
    del view
    assert not seen.holds()


def grown(blob: Blob) -> None:
    blob.reshape(5, 3)


BLOB_CHANGES = {
    "written to": lambda blob: blob.data,
    "zeroed": lambda blob: blob.data_memory.zero(blob.count),
    "an address to write to": lambda blob: blob.data_address("write"),
    "reshaped": lambda blob: blob.reshape(3, 2),
    "grown": grown,
    "other memory": lambda blob: blob.share_data(written((2, 3))),
    "other gradient": lambda blob: blob.share_diff(written((2, 3))),
    "given back": lambda blob: blob.give_back("gone"),
}


@pytest.mark.parametrize("change", BLOB_CHANGES.values(), ids=BLOB_CHANGES)
def test_changes_of_a_watched_blob_are_noted(change: Any) -> None:
    blob, other = written((2, 3)), written((2, 3))
    Unchanged([blob])
    before = current_version()
    blob.read_data()
    blob.data_for_loops()
    blob.data_address("read")
    blob.reshape(2, 3)
    blob.share_data(blob)
    change(other)
    assert current_version() is before
    change(blob)
    assert current_version() is not before


@pytest.mark.parametrize("change", [lambda blob: blob.reshape(3, 2), lambda blob: blob.share_data(written((2, 3)))])
def test_of_a_watched_shape_the_numbers_do_not_count(change: Any) -> None:
    blob = written((2, 3))
    seen, before = Unchanged((), [blob]), current_version()
    blob.data[...] = 5
    assert current_version() is before and seen.holds()
    change(blob)
    assert current_version() is not before


@pytest.mark.parametrize(
    "change",
    [
        lambda blobs: blobs.append(Blob()),
        lambda blobs: blobs.add_blob(3),
        lambda blobs: blobs.extend([Blob()]),
        lambda blobs: blobs.insert(0, Blob()),
        lambda blobs: blobs.pop(),
        lambda blobs: blobs.remove(blobs[0]),
        lambda blobs: blobs.clear(),
        lambda blobs: blobs.reverse(),
        lambda blobs: blobs.sort(key=id),
        lambda blobs: blobs.__setitem__(0, Blob()),
        lambda blobs: blobs.__setitem__(slice(1), []),
        lambda blobs: blobs.__delitem__(0),
        lambda blobs: blobs.__iadd__([Blob()]),
        lambda blobs: blobs.__imul__(2),
    ],
)
def test_changes_of_a_list_of_blobs_are_noted(change: Any) -> None:
    blobs = BlobList()
    for n in (2, 3):
        blobs.add_blob(n)
    before = current_version()
    assert [blob.shape for blob in blobs] == [(2,), (3,)]
    assert current_version() is before
    change(blobs)
    assert current_version() is not before


def written(shape: tuple[int, ...]) -> Blob:
    blob = Blob(shape)
    blob.data[...] = 1
    return blob
