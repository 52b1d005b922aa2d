"""AnnotatedData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, datum, image, make_database, net_of

from minicaffe.data.image_bytes import resized
from minicaffe.data.noise import lab_of
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.ssd.batch_samplers import cut
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
    pixels = np.arange(8 * 12).reshape(8, 12, 1)
    np.testing.assert_array_equal(cut(pixels, np.array([0.25, 0.5, 0.75, 1.0])), pixels[4:8, 3:9])
    assert cut(pixels, np.array([0.999, 0.999, 1.0, 1.0])).shape == (1, 1, 1)


def jaccard_sampler(overlap: str) -> str:
    return (
        "batch_sampler { sampler { min_scale: 0.3 max_scale: 1.0 min_aspect_ratio: 0.5 max_aspect_ratio: 2.0 }\n"
        f"sample_constraint {{ {overlap} }} max_sample: 1 max_trials: 50 }}\n"
    )


VOC_TRANSFORM = """mirror: true mean_value: 104 mean_value: 117 mean_value: 123
resize_param { prob: 1 resize_mode: WARP height: 300 width: 300
  interp_mode: LINEAR interp_mode: AREA interp_mode: NEAREST interp_mode: CUBIC interp_mode: LANCZOS4 }
emit_constraint { emit_type: CENTER }
distort_param { brightness_prob: 0.5 brightness_delta: 32 contrast_prob: 0.5 contrast_lower: 0.5 contrast_upper: 1.5
  hue_prob: 0.5 hue_delta: 18 saturation_prob: 0.5 saturation_lower: 0.5 saturation_upper: 1.5 random_order_prob: 0.0 }
expand_param { prob: 0.5 max_expand_ratio: 4.0 }"""
VOC_SAMPLERS = "batch_sampler { max_sample: 1 max_trials: 1 }\n" + "".join(
    map(jaccard_sampler, [f"min_jaccard_overlap: {part}" for part in (0.1, 0.3, 0.5, 0.7, 0.9)] + ["max_jaccard_overlap: 1.0"])
)


@pytest.mark.slow
def test_the_training_data_of_ssd300() -> None:
    """transform_param and batch_samplers as the SSD300 prototxt for VOC has them."""
    assert VOC_SAMPLERS.count("batch_sampler") == 7
    data = text("batch_size: 2", VOC_TRANSFORM, VOC_SAMPLERS)
    for images, label in batches(net_of(data, TRAIN), 4):
        assert images.shape == (2, 3, 300, 300)
        assert images[:, 0].min() >= -104 and images[:, 2].max() <= 255 - 123 and images.std() > 1
        boxes = label[0, 0, label[0, 0, :, 0] >= 0, 3:7]
        assert (boxes >= 0).all() and (boxes <= 1).all() and (boxes[:, 2:] > boxes[:, :2]).all()
    check_repeats_and_resumes(data, TRAIN, count=2)


def test_expanded_images_lie_on_the_mean() -> None:
    """With the mean taken off the canvas is 0, and the box covers the same pixels as before: its mean says so."""
    transform = "mean_value: 10 expand_param { prob: 1 max_expand_ratio: 3 }"
    sizes = set()
    for data, label in batches(net_of(text("batch_size: 1", transform), TRAIN), 12)[::3]:
        height, width = data.shape[2:]
        x, y, x_end, y_end = label[0, 0, 0, 3:7] * [width, height, width, height]
        assert (x_end - x, y_end - y) == pytest.approx((0.4 * 12, 0.4 * 8), rel=1e-5)
        left, top = round(x - 1.2), round(y - 1.6)
        np.testing.assert_array_equal(data[0, :, top : top + 8, left : left + 12], image(0, 8, 12).transpose(2, 0, 1) - 10.0)
        assert np.count_nonzero(data) <= 3 * 8 * 12
        sizes.add((height, width))
    assert len(sizes) > 1


def test_padded_and_cropped_boxes() -> None:
    """8 x 12 is fitted into 12 x 12: 2 rows above and below; the crop of 10 x 6 then begins at row 1, column 3."""
    resize = "resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 12 width: 12 pad_value: 7 }"
    ((data, label),) = batches(net_of(text("batch_size: 1", resize)), 1)
    assert (data[0, :, :2] == 7).all() and (data[0, :, 10:] == 7).all()
    np.testing.assert_array_equal(data[0, :, 2:10], image(0, 8, 12).transpose(2, 0, 1))
    np.testing.assert_allclose(label[0, 0, 0, 3:7], [0.1, 3.6 / 12, 0.5, 6.8 / 12], rtol=1e-6)
    ((cropped, label),) = batches(net_of(text("batch_size: 1", resize + " crop_h: 10 crop_w: 6")), 1)
    np.testing.assert_array_equal(cropped, data[:, :, 1:11, 3:9])
    np.testing.assert_allclose(label[0, 0, 0, 3:7], [0, 2.6 / 10, 3 / 6, 5.8 / 10], rtol=1e-5)


def test_noise_and_random_crops() -> None:
    transform = "crop_size: 5 noise_param { inverse: true }"
    plain = (255 - image(0, 8, 12)).transpose(2, 0, 1)
    windows = {plain[:, y : y + 5, x : x + 5].astype("f4").tobytes() for y in range(4) for x in range(8)}
    seen = {data[0].tobytes() for data, _ in batches(net_of(text("batch_size: 1", transform), TRAIN), 18)[::3]}
    assert seen <= windows and len(seen) > 1


def test_lab() -> None:
    ((data, _),) = batches(net_of(text("batch_size: 1", "noise_param { convert_to_lab: true }")), 1)
    np.testing.assert_array_equal(data[0], lab_of(image(0, 8, 12)).transpose(2, 0, 1))


def test_boxes_relative_to_height_scale_and_width_scale() -> None:
    """8 x 12 becomes 4 x 6, of which 4 x 4 from column 1 is taken: the box's columns 0.6 .. 3 are -0.4 (cut to 0) .. 2 of 4,
    and 0 .. 2 of 2 are 0 .. 1; its rows 0.8 .. 2.4 of 4 are so of 4."""
    resize = "resize_param { resize_mode: %s height: 4 width: 4 height_scale: 4 width_scale: 2 } crop_size: 4"
    ((_, label),) = batches(net_of(text("batch_size: 1", resize % "FIT_SMALL_SIZE")), 1)
    np.testing.assert_allclose(label[0, 0, 0, 3:7], [0, 0.2, 1, 0.6], atol=1e-6)
    ((_, label),) = batches(net_of(text("batch_size: 1", resize % "WARP")), 1)
    np.testing.assert_allclose(label[0, 0, 0, 3:7], [0.1, 0.2, 0.5, 0.6], atol=1e-6)


def test_a_chance_of_resizing_changes_nothing_and_says_so() -> None:
    plain, chance = (f"resize_param {{ height: 3 width: 5 {more} }}" for more in ("", "prob: 0.1"))
    with pytest.warns(
        PrototxtWarning, match=r'"in": resize_param.prob has no effect: every image is resized \(data.prototxt:1'
    ):
        net = net_of(text(transform=chance))
    np.testing.assert_array_equal(batches(net, 1)[0][0], batches(net_of(text(transform=plain)), 1)[0][0])


@pytest.mark.parametrize(("height", "width"), [(8, 12), (4, 6)])
def test_a_mean_image_of_the_whole_or_of_the_crop(height: int, width: int) -> None:
    """The centre crop of 4 x 6 begins at row 2 and column 3."""
    mean = np.random.default_rng(7).uniform(0, 99, (1, 3, height, width)).astype(np.float32)
    write_binaryproto("mean.binaryproto", mean)
    ((data, _),) = batches(net_of(text("batch_size: 1", 'crop_h: 4 crop_w: 6 mean_file: "mean.binaryproto"')), 1)
    part = mean[0, :, 2:6, 3:9] if height == 8 else mean[0]
    np.testing.assert_array_equal(data[0], image(0, 8, 12).transpose(2, 0, 1)[:, 2:6, 3:9] - part)


def test_a_mean_image_s_average_is_the_canvas() -> None:
    mean = np.broadcast_to(np.array([10, 20, 30], np.float32)[:, None, None], (1, 3, 8, 12))
    write_binaryproto("mean.binaryproto", mean)
    resize = "resize_param { height: 8 width: 12 interp_mode: NEAREST }"
    net = net_of(text("batch_size: 1", f'mean_file: "mean.binaryproto" expand_param {{ max_expand_ratio: 4 }} {resize}'), TRAIN)
    share = np.mean([(data == 0).all(axis=1).mean() for data, _ in batches(net, 12)])
    assert 0.4 < share < 0.95
    write_binaryproto("mean.binaryproto", mean[:, :2])
    with pytest.raises(LayerError, match="2 channels in the mean_file for 3 channels"):
        net_of(text("batch_size: 1", 'mean_file: "mean.binaryproto" expand_param { }')).forward()


def test_a_seed_repeats_and_a_state_resumes() -> None:
    check_repeats_and_resumes(text("batch_size: 2", "resize_param { height: 5 width: 7 } mirror: true", SAMPLER), TRAIN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"more": "batch_size: 0"}, "batch_size must be > 0, got 0"),
        ({"source": "absent"}, "absent: no such database"),
        ({"transform": "resize_param { height: 3 }"}, "resize_param needs a height and a width > 0, got 3 and 0"),
        ({"transform": "expand_param { max_expand_ratio: 0.5 }"}, "expand_param.max_expand_ratio must be >= 1 and finite"),
        (
            {"transform": "expand_param { max_expand_ratio: inf }"},
            "expand_param.max_expand_ratio must be >= 1 and finite, got inf",
        ),
        (
            {"annotations": "batch_sampler { max_trials: 9999 } batch_sampler { max_trials: 2 }"},
            "max_trials of the batch samplers are at most 10000 together, got 10001",
        ),
        *(
            ({"annotations": f"batch_sampler {{ sampler {{ {inside} }} }}"}, rf"min_{name} and max_{name} of a sampler must be")
            for inside, name in (
                ("min_scale: 0", "scale"),
                ("min_scale: nan max_scale: nan", "scale"),
                ("min_scale: 0.5 max_scale: 0.25", "scale"),
                ("max_scale: 2", "scale"),
                ("min_aspect_ratio: 0", "aspect_ratio"),
                ("max_aspect_ratio: inf", "aspect_ratio"),
            )
        ),
        ({"transform": "crop_size: 3 crop_h: 3"}, "give crop_size, or crop_h and crop_w, not both"),
        ({"transform": "crop_h: 3"}, "give both crop_h and crop_w, or neither; got 3 and 0"),
        ({"transform": "distort_param { hue_delta: -1 }"}, "distort_param.hue_delta must be >= 0 and finite, got -1"),
        ({"transform": "distort_param { hue_delta: inf }"}, "distort_param.hue_delta must be >= 0 and finite, got inf"),
        (
            {"transform": "distort_param { contrast_lower: nan contrast_upper: nan }"},
            "distort_param.contrast_lower must be >= 0 and finite, got nan",
        ),
        (
            {"transform": "distort_param { contrast_lower: 1 contrast_upper: nan }"},
            "distort_param.contrast_upper must be >= contrast_lower 1 and finite, got nan",
        ),
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
    with pytest.raises(LayerError, match='floats, key "00000000": resize_param needs images of bytes, but these are floats'):
        net.forward()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("crop_size: 9", "the crop, 9 wide and 9 high, is larger than the image, 12 wide and 8 high"),
        (
            "resize_param { resize_mode: FIT_SMALL_SIZE height: 4 width: 4 height_scale: 4 width_scale: 7 }",
            "resize_param: height_scale 4 and width_scale 7 are larger than the image, 6 wide and 4 high",
        ),
        ("mean_value: 1 mean_value: 2 expand_param { }", "2 mean_value given for 3 channels"),
    ],
)
def test_images_that_do_not_fit(transform: str, message: str) -> None:
    with pytest.raises(LayerError, match=f'boxes, key "00000000": {message}'):
        net_of(text("batch_size: 1", transform)).forward()
