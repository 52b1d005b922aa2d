"""CustomData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, make_database, net_of
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import DataError, LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.forks.flownet.custom_data import decoded, permuted, slices_of
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")

SIZE = 3, 5
SLICES = "slice_point: 2 slice_point: 4 encoding: UINT8 encoding: UINT16FLOW encoding: BOOL1"


def record(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two channels of bytes, two of flow in 1/32, one of bits."""
    random = np.random.default_rng(i)
    flow = random.integers(-2000, 2000, (2, *SIZE)).astype(np.int16)
    flow[0, 0, 0] = 32767
    return random.integers(0, 256, (2, *SIZE), dtype=np.uint8), flow, random.integers(0, 2, (1, *SIZE), dtype=np.uint8)


def datum(i: int) -> caffe_pb2.Datum:
    image, flow, bits = record(i)
    data = image.tobytes() + flow.astype("<i2").tobytes() + np.packbits(bits.ravel(), bitorder="little").tobytes()
    return caffe_pb2.Datum(channels=5, height=SIZE[0], width=SIZE[1], data=data, label=10 + i)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_database("five", [datum(i) for i in range(5)])


def text(more: str = "", tops: int = 4, source: str = "five", slices: str = SLICES) -> str:
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return (
        f'layer {{ name: "in" type: "CustomData" {names} data_param {{ source: "{source}" backend: LMDB {slices} '
        f"{more or 'batch_size: 2'} }} }}"
    )


def order(more: str, count: int = 5) -> list[int]:
    """The records of so many batches of one."""
    return [int(batch[-1].item()) - 10 for batch in batches(net_of(text(f"batch_size: 1 {more}")), count)]


def test_slices_in_their_encodings() -> None:
    made = net_of(text("batch_size: 2 scale: 0.5 subtract: 3 subtract: 4 subtract: 1"))
    assert [blob.shape for blob in made.blobs.values()] == [(2, 2, 3, 5), (2, 2, 3, 5), (2, 1, 3, 5), (2, 1, 1, 1)]
    taken = batches(made, 3)
    assert [batch[3].ravel().tolist() for batch in taken] == [[10, 11], [12, 13], [14, 10]]
    for i in range(2):
        image, flow, bits = record(i)
        np.testing.assert_allclose(taken[0][0][i], (image - np.reshape([3.0, 4], (2, 1, 1))) / 2)
        values = np.where(flow == 32767, np.nan, flow / 32) - np.reshape([1.0, 0], (2, 1, 1))
        np.testing.assert_allclose(taken[0][1][i], values / 2)
        np.testing.assert_allclose(taken[0][2][i], bits / 2)


def test_without_labels_and_without_slices() -> None:
    assert len(batches(net_of(text(tops=3)), 1)[0]) == 3
    floats = np.arange(2 * 3 * 5, dtype=np.float32)
    make_database("floats", [caffe_pb2.Datum(channels=2, height=3, width=5, float_data=floats)])
    ((data,),) = batches(net_of(text("batch_size: 2", 1, "floats", "")), 1)
    np.testing.assert_array_equal(data, np.stack([floats.reshape(2, 3, 5)] * 2))


def test_a_mean_file() -> None:
    mean = np.random.default_rng(0).normal(size=(1, 5, 3, 5)).astype(np.float32)
    write_binaryproto(Path("mean.binaryproto"), mean)
    image, *_ = batches(net_of(text('mean_file: "mean.binaryproto"')), 1)[0]
    np.testing.assert_allclose(image[0], record(0)[0] - mean[0, :2], rtol=1e-6)
    write_binaryproto(Path("small.binaryproto"), mean[:, :4])
    with pytest.raises(LayerError, match=r"small.binaryproto has shape \(1, 4, 3, 5\), the records have \(5, 3, 5\)"):
        net_of(text('mean_file: "small.binaryproto"'))


def test_ranges_and_selections() -> None:
    assert order("range_start: 1 range_end: 3") == [1, 2, 3, 1, 2]
    assert order("range_start: 3 range_end: 99") == [3, 4, 3, 4, 3]
    Path("chosen.txt").write_text("1 2\n1\n2 1\n")
    assert order('preselection_file: "chosen.txt" preselection_label: 1') == [0, 2, 4, 0, 2]
    assert order('preselection_file: "chosen.txt" preselection_label: 1 range_start: 1') == [2, 4, 2, 4, 2]


def test_random_orders() -> None:
    first = order("rand_permute: true rand_permute_seed: 4", 10)
    assert sorted(first[:5]) == list(range(5)) and first[:5] == first[5:], "the same order each time around"
    assert first == order("rand_permute: true rand_permute_seed: 4", 10)
    again = order("rand_permute: true rand_permute_seed: 4 permute_every_iter: 5", 10)
    assert again[:5] == first[:5] and sorted(again[5:]) == list(range(5)) and again[5:] != again[:5]
    part = "rand_permute: true rand_permute_seed: 4 range_start: 1 range_end: 3 rand_permute_order: "
    assert sorted(order(f"{part} FIRST_RANGE_THEN_PERMUTE", 3)) == [1, 2, 3]
    assert order(f"{part} FIRST_PERMUTE_THEN_RANGE", 3) == first[1:4]
    anew = order(f"{part} FIRST_PERMUTE_THEN_RANGE permute_every_iter: 3", 9)
    assert sorted(anew[3:6]) == sorted(anew[6:]) == sorted(first[1:4])


@given(st.integers(1, 30), st.integers(0, 9), st.integers(0, 2**20))
def test_blocks(count: int, block: int, seed: int) -> None:
    found = permuted(np.arange(count), block, np.random.default_rng(seed))
    assert sorted(found) == list(range(count))
    for start in range(0, count, block or count):
        end = min(start + (block or count), count)
        assert set(found[start:end]) == set(range(start, end)) and (not block or found[end - 1] == end - 1)


def test_a_seed_repeats_and_a_state_resumes() -> None:
    check_repeats_and_resumes(text("batch_size: 2 rand_permute: true permute_every_iter: 2 block_size: 4", 4), TRAIN)


@pytest.mark.parametrize(
    ("more", "tops", "message"),
    [
        ("rand_skip: 1", 4, "rand_skip is not supported, in the original neither"),
        ("crop_size: 2", 4, "crop_size is not supported"),
        ("backend: LEVELDB", 4, "reads LMDBs alone: write backend: LMDB"),
        ("", 2, "3 slices give 3 tops, or one more for labels, got 2"),
        ("encoding: UINT8", 4, "4 encodings given for 3 slices"),
        ("subtract: inf", 4, "subtract must be finite, got inf"),
        ("subtract: 1 " * 6, 4, "6 numbers to subtract from 5 channels"),
        ("range_start: 3 range_end: 1", 4, "range_end 1 is before range_start 3"),
        ('preselection_file: "chosen.txt"', 4, "preselection_file needs a preselection_label"),
        ('preselection_file: "chosen.txt" preselection_label: 1', 4, "chosen.txt: 2 labels for the 5 records of five"),
        ('preselection_file: "bad.txt" preselection_label: 1', 4, 'bad.txt:2: the label "x" is not a whole number'),
        ('preselection_file: "five.txt" preselection_label: 7', 4, "five.txt: no record has the label 7"),
    ],
)
def test_errors(more: str, tops: int, message: str) -> None:
    for name, content in (("chosen", "1 1"), ("bad", "1\nx"), ("five", "1 1 1 1 1")):
        Path(f"{name}.txt").write_text(content)
    line = text(f"batch_size: 1 {more}", tops)
    with pytest.raises(LayerError, match=message):
        net_of(line.replace("backend: LMDB", "", 1) if "LEVELDB" in more else line)


def test_records_that_do_not_fit() -> None:
    short, tall = datum(1), datum(2)
    short.data, tall.height = short.data[:-1], 4
    make_database("short", [datum(0), short, tall])
    made = net_of(text("batch_size: 1", source="short"))
    made.forward()
    with pytest.raises(LayerError, match="short, record 1: 91 bytes are stored, not those of 3 slices of 5 channels of 3 x 5"):
        made.forward()
    with pytest.raises(LayerError, match=r"short, record 2: it has shape \(5, 4, 5\), and the first has \(5, 3, 5\)"):
        net_of(text("batch_size: 1 range_start: 2", source="short")).forward()
    with pytest.raises(LayerError, match="slice_point 2, 6 do not cut 5 channels into slices"):
        net_of(text("batch_size: 1", slices="slice_point: 2 slice_point: 6"))
    with pytest.raises(DataError, match="a slice of BOOL1 has one channel, got 5"):
        decoded(datum(0), slices_of([], 5), [caffe_pb2.DataParameter.BOOL1])
    with pytest.raises(DataError, match="the record has floats, which have no encoding"):
        decoded(caffe_pb2.Datum(float_data=[1]), slices_of([], 1), [caffe_pb2.DataParameter.UINT8])
    with pytest.raises(DataError, match="the record is an image file"):
        decoded(caffe_pb2.Datum(encoded=True), slices_of([], 1), [])
