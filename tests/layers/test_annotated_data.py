"""AnnotatedData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, datum, image, make_database, net_of

from minicaffe.errors import LayerError
from minicaffe.image_bytes import resized
from minicaffe.layers.annotated_data import cut
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")

BOXES = [[(1, 0.1, 0.2, 0.5, 0.6)], [], [(2, 0.0, 0.0, 0.4, 0.4), (2, 0.5, 0.5, 1.0, 1.0)]]
SAMPLER = """batch_sampler { max_sample: 1 max_trials: 1 }
batch_sampler { sampler { min_scale: 0.3 max_scale: 1 min_aspect_ratio: 0.5 max_aspect_ratio: 2 }
  sample_constraint { min_jaccard_overlap: 0.1 } max_sample: 1 max_trials: 50 }"""


def annotated(i: int) -> caffe_pb2.AnnotatedDatum:
    """image(i) with BOXES[i], one group each; the last box is difficult."""
    pixels = image(i, 8, 12)
    plain = caffe_pb2.Datum(channels=3, height=8, width=12, data=pixels.transpose(2, 0, 1).tobytes())
    item = caffe_pb2.AnnotatedDatum(datum=plain, type=caffe_pb2.AnnotatedDatum.BBOX)
    for k, (label, *corners) in enumerate(BOXES[i]):
        box = caffe_pb2.NormalizedBBox(**dict(zip(("xmin", "ymin", "xmax", "ymax"), corners)), difficult=k == 1)
        group = item.annotation_group.add(group_label=label)
        group.annotation.add(instance_id=k, bbox=box)
    return item


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an LMDB of three annotated images."""
    monkeypatch.chdir(tmp_path)
    make_database("boxes", [annotated(i) for i in range(3)])
    return tmp_path


def text(more: str = "batch_size: 3", transform: str = "", annotations: str = "", source: str = "boxes") -> str:
    return (
        f'layer {{ name: "in" type: "AnnotatedData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'annotated_data_param {{ {annotations} }} data_param {{ source: "{source}" backend: LMDB {more} }} }}'
    )


def test_images_and_boxes() -> None:
    net = net_of(text(transform="mean_value: 100 scale: 0.5"))
    assert net.blobs["data"].shape == (3, 3, 8, 12)
    ((data, label),) = batches(net, 1)
    np.testing.assert_array_equal(data[1], (image(1, 8, 12).transpose(2, 0, 1) - np.float32(100)) * 0.5)
    expected = [[0, 1, 0, 0.1, 0.2, 0.5, 0.6, 0], [2, 2, 0, 0, 0, 0.4, 0.4, 0], [2, 2, 1, 0.5, 0.5, 1, 1, 1]]
    np.testing.assert_allclose(label, [[expected]], rtol=1e-6)


def test_a_batch_without_boxes_is_a_row_of_minus_one() -> None:
    taken = batches(net_of(text("batch_size: 1")), 4)
    assert [label.shape for _, label in taken] == [(1, 1, 1, 8), (1, 1, 1, 8), (1, 1, 2, 8), (1, 1, 1, 8)]
    assert (taken[1][1] == -1).all()


def test_resize_and_mirror_keep_boxes_on_their_pixels() -> None:
    transform = "resize_param { height: 4 width: 6 interp_mode: LINEAR } mirror: true"
    seen = set()
    for data, label in batches(net_of(text("batch_size: 1", transform), TRAIN), 36)[::3]:
        whole = resized(image(0, 8, 12), 4, 6).transpose(2, 0, 1)
        flipped = bool((data[0] == whole[:, :, ::-1]).all())
        assert flipped or (data[0] == whole).all()
        np.testing.assert_allclose(label[0, 0, 0, 3:7], [0.5, 0.2, 0.9, 0.6] if flipped else [0.1, 0.2, 0.5, 0.6], rtol=1e-6)
        seen.add(flipped)
    assert seen == {True, False}


def test_crops() -> None:
    net = net_of(text("batch_size: 3", "resize_param { height: 5 width: 7 }", SAMPLER), TRAIN)
    for data, label in batches(net, 6):
        assert data.shape == (3, 3, 5, 7)
        boxes = label[0, 0, :, 3:7]
        assert (label[0, 0, 0, 0] == -1) or ((boxes >= 0).all() and (boxes <= 1).all() and (boxes[:, 2:] > boxes[:, :2]).all())
    pixels = np.arange(8 * 12).reshape(1, 8, 12)
    np.testing.assert_array_equal(cut(pixels, np.array([0.25, 0.5, 0.75, 1.0])), pixels[:, 4:8, 3:9])
    assert cut(pixels, np.array([0.999, 0.999, 1.0, 1.0])).shape == (1, 1, 1)


def test_a_seed_repeats_and_a_state_resumes() -> None:
    check_repeats_and_resumes(text("batch_size: 2", "resize_param { height: 5 width: 7 } mirror: true", SAMPLER), TRAIN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"more": "batch_size: 0"}, "batch_size must be > 0, got 0"),
        ({"source": "absent"}, "absent: no such database"),
        ({"transform": "crop_size: 3"}, "crop_size is not built in for AnnotatedData"),
        (
            {"transform": "resize_param { resize_mode: FIT_SMALL_SIZE }"},
            "of resize_param only WARP with interp_mode LINEAR and prob 1 is built in",
        ),
        ({"transform": "resize_param { height: 3 }"}, "resize_param needs a height and a width > 0, got 3 and 0"),
        ({"transform": "expand_param { prob: 0.5 }"}, "transform_param.expand_param belongs to SSD and is not built in"),
    ],
)
def test_errors(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(LayerError, match='AnnotatedData layer "in": ' + message):
        net_of(text(**arguments))


def test_items_that_are_none(folder: Path) -> None:
    make_database("plain", [datum(0)])
    with pytest.raises(LayerError, match='plain, key "00000000": not an AnnotatedDatum'):
        net_of(text(source="plain"))
    floats = caffe_pb2.Datum(channels=1, height=2, width=2, float_data=[1, 2, 3, 4])
    make_database("floats", [caffe_pb2.AnnotatedDatum(datum=floats)])  # type: ignore[list-item]
    net = net_of(text("batch_size: 1", "resize_param { height: 3 width: 3 }", source="floats"))
    with pytest.raises(LayerError, match="floats: resize_param needs images of bytes, these are floats"):
        net.forward()
