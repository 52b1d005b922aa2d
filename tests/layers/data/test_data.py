"""Data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, datum, make_database, net_of, run_batches
from golden import cases
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.database import new_database
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.formats.weights import write_binaryproto
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an LMDB of five items."""
    monkeypatch.chdir(tmp_path)
    make_database("five", [datum(i) for i in range(5)])
    return tmp_path


def text(source: str = "five", more: str = "", transform: str = "", backend: str = "LMDB") -> str:
    return (
        f'layer {{ name: "in" type: "Data" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'data_param {{ source: "{source}" backend: {backend} {more or "batch_size: 2"} }} }}'
    )


def pixels(i: int) -> np.ndarray:
    return np.frombuffer(datum(i).data, np.uint8).reshape(2, 4, 6).astype(np.float32)


@pytest.mark.parametrize("case", cases("Data"))
def test_golden(case: str) -> None:
    assert run_batches(case)


def test_batches_go_around() -> None:
    net = net_of(text())
    assert net.blobs["data"].shape == (2, 2, 4, 6)
    taken = batches(net, 3)
    assert [labels.tolist() for _, labels in taken] == [[10, 11], [12, 13], [14, 10]]
    np.testing.assert_array_equal(taken[2][0], [pixels(4), pixels(0)])


def test_the_centre_in_test_and_a_random_place_in_train() -> None:
    transform = "crop_size: 3 scale: 0.5 mean_value: 10 mean_value: 20 mirror: true"
    (data, _), *_ = batches(net_of(text(transform=transform.replace("mirror: true", ""))), 1)
    means = np.array([10, 20], np.float32)[:, None, None]
    np.testing.assert_array_equal(data[0], (pixels(0)[:, 0:3, 1:4] - means) / 2)
    expected = (pixels(0) - means) / 2
    places = set()
    net = net_of(text(more="batch_size: 5", transform=transform), TRAIN)
    for _ in range(60):
        net.forward()
        crop = net.blobs["data"].data[0]
        found = [
            (h, w, flip)
            for h in range(2)
            for w in range(4)
            for flip in (1, -1)
            if np.array_equal(crop[:, :, ::flip], expected[:, h : h + 3, w : w + 3])
        ]
        assert found
        places.update(found)
    assert len(places) == 16


def test_a_mean_image_is_cropped_where_the_image_is(folder: Path) -> None:
    mean = np.arange(48, dtype=np.float32).reshape(1, 2, 4, 6)
    write_binaryproto("mean.binaryproto", mean)
    net = net_of(text(transform='crop_size: 2 mean_file: "mean.binaryproto"'))
    net.forward()
    np.testing.assert_array_equal(net.blobs["data"].data[1], (pixels(1) - mean[0])[:, 1:3, 2:4])


def test_resized_with_noise_then_cropped() -> None:
    """4 x 6 doubled by NEAREST is 8 x 12; its centre of 4 x 6 is rows 1, 1, 2, 2 and columns 1, 2, 2, 3, 3, 4."""
    make_database("grey", [datum(i, channels=1) for i in range(2)])
    resize = "resize_param { height: 8 width: 12 interp_mode: NEAREST }"
    ((data, _),) = batches(net_of(text("grey", transform=f"{resize} noise_param {{ inverse: true }} crop_h: 4 crop_w: 6")), 1)
    original = np.frombuffer(datum(0, channels=1).data, np.uint8).reshape(4, 6)
    np.testing.assert_array_equal(data[0, 0], 255.0 - original[[1, 1, 2, 2]][:, [1, 2, 2, 3, 3, 4]])
    assert net_of(text("grey", transform=resize)).blobs["data"].shape == (2, 1, 8, 12)
    check_repeats_and_resumes(text("grey", transform=resize + " noise_param { prob: 0.5 inverse: true } mirror: true"), TRAIN)


def test_resizing_is_of_bytes() -> None:
    make_database("floats", [caffe_pb2.Datum(channels=1, height=2, width=2, float_data=[1, 2, 3, 4])])
    net = net_of(text("floats", transform="resize_param { height: 3 width: 3 }"))
    with pytest.raises(LayerError, match='floats, key "00000000": resize_param needs images of bytes, but these are floats'):
        net.forward()


@pytest.mark.parametrize("name", ["distort_param", "expand_param", "emit_constraint"])
def test_what_only_annotated_data_looks_at(name: str) -> None:
    with pytest.warns(PrototxtWarning, match=f'Data layer "in": {name} has no effect here: only AnnotatedData reads it'):
        net = net_of(text(transform=f"{name} {{ }}"))
    np.testing.assert_array_equal(batches(net, 1)[0][0], [pixels(0), pixels(1)])


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("batch", [2, 5, 7])
def test_a_seed_repeats_and_a_state_resumes(phase, batch: int) -> None:
    more = f"batch_size: {batch} rand_skip: 4 prefetch: 3"
    check_repeats_and_resumes(text(more=more, transform="crop_size: 3 mirror: true"), phase)


def test_rand_skip_begins_elsewhere() -> None:
    firsts = {float(batches(net_of(text(more="batch_size: 1 rand_skip: 3"), seed=s), 1)[0][1][0]) for s in range(30)}
    assert firsts == {10, 11, 12}


def test_two_nets_read_one_database_at_once() -> None:
    one, other = net_of(text()), net_of(text(source="./five"))
    assert [batches(net, 2)[1][1].tolist() for net in (one, other, one)] == [[12, 13], [12, 13], [11, 12]]


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 5))
def test_every_item_comes_in_turn(items: int, batch: int, ahead: int) -> None:
    net = net_of(text(more=f"batch_size: {batch} prefetch: {ahead}"))
    labels = np.concatenate([labels for _, labels in batches(net, items)])
    np.testing.assert_array_equal(labels, 10 + np.arange(batch * items) % 5)


def test_leveldb_is_read_while_another_process_could_be(folder: Path) -> None:
    pytest.importorskip("plyvel", reason="the extra minicaffe[leveldb] is not installed")
    make_database("level", [datum(i) for i in range(3)], "leveldb")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in Path("level").iterdir())
    nets = [net_of(text("level", backend="LEVELDB")) for _ in range(2)]
    assert [batches(net, 2)[1][1].tolist() for net in nets] == [[12, 10], [12, 10]]
    assert sorted((p.name, p.stat().st_mtime_ns) for p in Path("level").iterdir()) == before
    check_repeats_and_resumes(text("level", backend="LEVELDB"), TRAIN)


@pytest.mark.parametrize(
    ("prototxt", "message"),
    [
        (text("none"), r"none: no such database \(in .*\) \(data.prototxt:1\)"),
        (text(more="batch_size: 0"), r"batch_size must be > 0, got 0 \(data.prototxt:2\)"),
        (text(backend="LEVELDB"), "five: the database is of backend LMDB, not LEVELDB: write backend: LMDB"),
        (text(transform="crop_size: 5"), "crop_size 5 is larger than the image, 6 wide and 4 high"),
        (text(transform="crop_h: 3"), "give both crop_h and crop_w, or neither; got 3 and 0"),
        (text(transform="crop_h: 3 crop_w: 7"), "the crop, 7 wide and 3 high, is larger than the image, 6 wide and 4 high"),
        (text(transform="resize_param { height: 3 }"), "resize_param needs a height and a width > 0, got 3 and 0"),
        (text(transform="force_color: true force_gray: true"), "force_color and force_gray cannot both be set"),
        (text(transform='mean_file: "absent" mean_value: 3'), "mean_file and mean_value cannot both be given"),
        (text(transform='mean_file: "absent.binaryproto"'), "mean_file: .*absent.binaryproto"),
        (text("empty"), "empty: the database is empty"),
        (text("short"), "short: damaged LMDB: .* the file was cut short"),
        (text("noise"), "noise: damaged LMDB: it does not begin like an LMDB"),
        (text("words"), 'words, key "00000000": not a Datum'),
        (text("lacking"), 'lacking, key "00000000": 47 values stored for 2 channels of 4 x 6'),
        (text("picture"), 'picture, key "00000000": cannot read the image: not an image, or damaged'),
    ],
)
def test_errors_at_setup(folder: Path, prototxt: str, message: str) -> None:
    make_database("empty", [])
    make_database("lacking", [caffe_pb2.Datum(channels=2, height=4, width=6, data=b"x" * 47)])
    make_database("picture", [caffe_pb2.Datum(data=b"no picture", encoded=True)])
    with new_database("words", "lmdb") as database:
        database.put(b"00000000", b"\xff\xff\xff")
    for name, content in (("short", Path("five/data.mdb").read_bytes()[:9000]), ("noise", b"noise" * 5000)):
        Path(name).mkdir()
        Path(name, "data.mdb").write_bytes(content)
    with pytest.raises(LayerError, match='Data layer "in": ' + message):
        net_of(prototxt)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            "",
            r'mixed, key "00000002": the image gives \(2, 5, 6\), but the batch began with \(2, 4, 6\): give all images',
        ),
        ("mean_value: 1 mean_value: 2 mean_value: 3", 'mixed, key "00000000": 3 mean_value given for 2 channels'),
        ('mean_file: "mean.binaryproto"', r'key "00000000": mean_file .* has shape \(2, 3, 6\), the image has \(2, 4, 6\)'),
    ],
)
def test_errors_of_the_thread_reach_the_caller_every_time(folder: Path, transform: str, message: str) -> None:
    make_database("mixed", [datum(0), datum(1), datum(2, height=5)])
    write_binaryproto("mean.binaryproto", np.zeros((1, 2, 3, 6)))
    net = net_of(text("mixed", "batch_size: 3", transform))
    for _ in range(2):
        with pytest.raises(LayerError, match='Data layer "in": .*' + message):
            net.forward()


def test_a_state_of_another_database_is_refused() -> None:
    layer = net_of(text()).layers[0]
    state = layer.training_state() | {"key": "elsewhere"}
    with pytest.raises(LayerError, match=r"the state to resume from does not fit: .*elsewhere"):
        layer.restore_training_state(state)
    with pytest.raises(LayerError, match='the state to resume from does not fit: "key" is missing'):
        layer.restore_training_state({})


@pytest.mark.parametrize("skip", [*range(13), 2**32 - 1])
def test_a_long_rand_skip_passes_over_whole_rounds_unread(monkeypatch: pytest.MonkeyPatch, skip: int) -> None:
    source = net_of(text(more="batch_size: 1")).layers[0].make_source(2, np.random.default_rng(0))  # type: ignore[attr-defined]
    step, steps = source._next, []

    def counted() -> Any:
        steps.append(1)
        assert len(steps) < 20
        return step()

    monkeypatch.setattr(source, "_next", counted)
    source._skip(skip)
    assert source.next_batch()[1] == 10 + skip % 5


def test_numbers_out_of_range_are_infinite_without_a_warning() -> None:
    """In the thread that prefetches too, where a warning is an error as it is here."""
    data = batches(net_of(text(transform="scale: 3e38")), 1)[0][0]
    assert np.isinf(data).any()
