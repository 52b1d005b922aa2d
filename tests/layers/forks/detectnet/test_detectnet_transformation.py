"""DetectNetTransformation: plain loops, written from detectnet_transform_layer.cpp and detectnet_coverage_rectangular.cpp."""

from __future__ import annotations

import colorsys
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as often
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TRAIN, Net, rng
from minicaffe.data.resizing import resize_cubic
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.forks.detectnet.coverage import Coverage
from minicaffe.layers.forks.detectnet.images import Turn, part_of, recoloured
from minicaffe.layers.forks.detectnet.transformation import Augmentation, drawn, moved, rounded
from minicaffe.proto import caffe_pb2

pytestmark = pytest.mark.usefixtures("device")

Truth, Augment = caffe_pb2.DetectNetGroundTruthParameter, caffe_pb2.DetectNetAugmentationParameter
NONE = "crop_prob: -1 scale_prob: -1 flip_prob: -1 rotation_prob: -1 hue_rotation_prob: -1 desaturation_prob: -1"
"""Nothing at random: a number is never at most -1."""


def layer(truth: str, augment: str = NONE, transform: str = "") -> str:
    return (
        f'type: "DetectNetTransformation" detectnet_groundtruth_param {{ {truth} }}'
        f" detectnet_augmentation_param {{ {augment} }} transform_param {{ {transform} }}"
    )


def labels_of(*images: list[list[float]], rows: int = 5) -> np.ndarray:
    """The labels (N, 1, rows, 16) of objects, each left, upper, width, height, class."""
    labels = np.full((len(images), 1, rows, 16), 7.0)
    for label, objects in zip(labels[:, 0], images, strict=True):
        label[0, :2] = len(objects), 16
        for row, (*box, kind) in zip(label[1:], objects, strict=False):
            row[:4], row[5] = box, kind
    return labels


def maps_by_loops(boxes: Any, classes: Any, p: Truth) -> np.ndarray:
    """Cell by cell, box by box."""
    mapping = {m.src: m.dst for m in p.object_class} or {1: 0}
    width, height = round(p.image_size_x / p.stride), round(p.image_size_y / p.stride)
    maps = np.zeros((8 + max(mapping.values()) + 1, height, width))
    for (x, y, w, h), kind in zip(boxes, classes, strict=True):
        x2, y2 = x + w, y + h
        if p.crop_bboxes:
            x, y, x2, y2 = max(x, 0), max(y, 0), min(x2, p.image_size_x), min(y2, p.image_size_y)
            if x2 <= x or y2 <= y:
                continue
        if kind not in mapping or (x2 - x) * (y2 - y) < 1.1920929e-07:
            continue
        sides = []
        for side in (x2 - x, y2 - y):
            if p.gridbox_type == Truth.GRIDBOX_MIN:
                sides.append(min(side, max(p.min_cvg_len, side * p.scale_cvg)))
            else:
                sides.append(min(p.max_cvg_len, side * p.scale_cvg))
        middle = ((x + x2) / 2, (y + y2) / 2)
        left, upper, right, lower = (middle[i % 2] + (-1, 1)[i // 2] * sides[i % 2] / 2 for i in range(4))
        for i, j in product(range(height), range(width)):
            cell_x, cell_y = j * p.stride, i * p.stride
            wide = min(right, cell_x + p.stride) - max(left, cell_x)
            high = min(lower, cell_y + p.stride) - max(upper, cell_y)
            if wide <= 0 or high <= 0 or wide * high / p.stride**2 <= 1.1920929e-07:
                continue
            norm = p.stride**2 / (sides[0] * sides[1])
            maps[:8, i, j] = [
                1, x - cell_x, y - cell_y, x2 - cell_x, y2 - cell_y, 1 / (x2 - x), 1 / (y2 - y),
                norm if p.obj_norm else max(1, norm),
            ]  # fmt: skip
            maps[8:, i, j] = 0
            maps[8 + mapping[kind], i, j] = 1
    return maps


NUMBER = st.integers(-40, 240).map(lambda n: n / 4)
BOX = st.tuples(NUMBER, NUMBER, st.integers(0, 160).map(lambda n: n / 4), st.integers(0, 160).map(lambda n: n / 4))


@often(max_examples=200)
@given(
    boxes=st.lists(st.tuples(BOX, st.integers(0, 3)), max_size=5),
    least=st.integers(0, 12),
    kind=st.integers(0, 1),
    scale=st.sampled_from([0.25, 0.5, 1.0]),
    norm=st.booleans(),
    crops=st.booleans(),
)
def test_maps_are_their_definition(boxes: Any, least: int, kind: int, scale: float, norm: bool, crops: bool) -> None:
    param = Truth(stride=8, scale_cvg=scale, gridbox_type=kind, max_cvg_len=least + 4, min_cvg_len=least, obj_norm=norm)  # type: ignore[arg-type]
    param.image_size_x, param.image_size_y, param.crop_bboxes = 56, 40, crops
    for src, dst in ((1, 0), (3, 2)):
        param.object_class.add(src=src, dst=dst)
    places, classes = np.array([box for box, _ in boxes]).reshape(-1, 4), np.array([k for _, k in boxes])
    maps = Coverage(param).maps(places, classes)
    assert maps.shape == (11, 5, 7)
    np.testing.assert_allclose(maps, maps_by_loops(places.tolist(), classes.tolist(), param), rtol=1e-12, atol=1e-12)


def test_the_layer_in_test_resizes_and_labels() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(0, 255, (2, 3, 10, 14))
    objects = [[2.0, 1, 6, 5, 1]], [[0.0, 0, 4, 3, 1], [7, 5, 5, 4, 2], [6, 4, 5, 4, 1]]
    truth = "stride: 4 image_size_x: 28 image_size_y: 25 gridbox_type: GRIDBOX_MIN min_cvg_len: 6 scale_cvg: 0.5"
    case = LayerCase(layer(truth, "", "mean_value: 100 mean_value: 110 mean_value: 120"), x, labels_of(*objects), tops=2)
    y, maps = case.forward()
    param = Truth(stride=4, image_size_x=28, image_size_y=25, gridbox_type=Truth.GRIDBOX_MIN, min_cvg_len=6, scale_cvg=0.5)
    assert y.shape == (2, 3, 25, 28) and maps.shape == (2, 9, 6, 7)
    for n in range(2):
        wanted = resize_cubic((x[n] - np.array([100, 110, 120])[:, None, None]).transpose(1, 2, 0), 25, 28)
        np.testing.assert_allclose(y[n], wanted.transpose(2, 0, 1), rtol=1e-4, atol=1e-3)
        boxes = [[v * s for v, s in zip(box[:4], (2, 2.5, 2, 2.5), strict=True)] for box in objects[n]]
        wanted_maps = maps_by_loops(boxes, [box[4] for box in objects[n]], param)
        np.testing.assert_allclose(maps[n], wanted_maps, rtol=1e-12, atol=1e-12)
    assert maps[:, 8].any()


def test_nothing_at_random_in_train_crops_the_middle() -> None:
    x = np.random.default_rng(0).uniform(0, 255, (1, 3, 9, 12))
    truth = "stride: 2 image_size_x: 8 image_size_y: 13"
    y, maps = LayerCase(layer(truth), x, labels_of([[4, 2, 3, 4, 1]]), tops=2, phase=TRAIN).forward()
    wanted = np.zeros((1, 3, 13, 8))
    wanted[:, :, 2:11] = x[:, :, :, 2:10]  # 12 - 8 = 4 too many columns, 9 - 13 = -4 too few rows
    np.testing.assert_allclose(y, wanted, rtol=1e-12)
    param = Truth(stride=2, image_size_x=8, image_size_y=13)
    np.testing.assert_allclose(maps[0], maps_by_loops([[2, 4, 3, 4]], [1], param))


def test_draws_in_their_order() -> None:
    param = Augment(crop_prob=0.5, shift_x=5, shift_y=4, scale_prob=0.5, scale_min=0.5, scale_max=1.5, flip_prob=0.5)
    param.rotation_prob = param.hue_rotation_prob = param.desaturation_prob = 0.5
    param.max_rotate_degree, param.hue_rotation, param.desaturation_max = 90, 400, 0.5
    numbers = iter([0.5, 0.25, 0.1, 0.5, 0.5, 0.2, 0.75, 0.3, 1.0, 0.4, 0.25, 0.75])
    done = drawn(param, (40, 30), (16, 12), lambda: next(numbers))
    # scale 0.5 + 0.75, rounded; a turn of 90 degrees; the crop: (0.25 (39 - 16 + 5) - 2), (0.75 (51 - 12 + 4) - 2)
    assert done.size == (50, 38) and done.hue == -180 and done.saturation == 0.75 and done.flip and done.degrees == 90
    turn = done.turn()
    assert turn is not None
    width, height = turn.size
    assert (width, height) in {(39, 51), (40, 52), (39, 52), (40, 51)}
    assert done.crop == (rounded(0.25 * (width - 16 + 5) - 2), rounded(0.75 * (height - 12 + 4) - 2))
    numbers = iter([0.6, 0.6, 0.6, 0.6, 0.6, 0.6])
    assert drawn(param, (40, 30), (16, 12), lambda: next(numbers)) == Augmentation((40, 30), crop=(12, 9))
    assert next(numbers, None) is None


def test_whole_numbers_are_rounded_from_zero() -> None:
    assert [rounded(v) for v in (2.5, -2.5, 2.4, -2.6, 0.0)] == [3, -3, 2, -3, 0]


@pytest.mark.parametrize(("hue", "saturation"), [(0, 0.5), (90, 1), (-200, 0.25), (359, 1)])
def test_colours_are_turned_in_hsv(hue: float, saturation: float) -> None:
    image = np.random.default_rng(0).uniform(0, 1, (4, 5, 3))
    image[0, 0], image[0, 1] = 0.5, 0  # grey and black have no hue
    found = recoloured(image, hue, saturation)
    for i, j in product(range(4), range(5)):
        h, s, v = colorsys.rgb_to_hsv(*image[i, j, ::-1])
        wanted = colorsys.hsv_to_rgb((h + hue / 360) % 1, s * saturation, v)[::-1]
        np.testing.assert_allclose(found[i, j], wanted, atol=2e-5)


@pytest.mark.parametrize("degrees", [0.8, -7, 35, 90])
def test_a_turn_of_the_image_and_of_points(degrees: float) -> None:
    image = np.random.default_rng(0).uniform(0, 1, (6, 9, 2))
    turn = Turn(9, 6, degrees)
    angle = math.radians(degrees)

    def forth(x: float, y: float, middle: tuple[float, float] = (4.5, 3)) -> tuple[float, float]:
        x, y = x - 4.5, y - 3
        return x * math.cos(angle) - y * math.sin(angle) + middle[0], x * math.sin(angle) + y * math.cos(angle) + middle[1]

    corners = [forth(x, y) for x in (0, 9) for y in (0, 6)]
    first = [math.floor(min(corner[k] for corner in corners)) for k in (0, 1)]
    whole = [forth(x, y, (4, 3)) for x in (0, 9) for y in (0, 6)]  # 4.5 as a whole number is 4
    size = [math.ceil(max(c[k] for c in whole)) - math.floor(min(c[k] for c in whole)) + 1 for k in (0, 1)]
    assert list(turn.size) == size
    result = turn.image(image)
    assert result.shape == (size[1], size[0], 2)
    for i, j in product(range(size[1]), range(size[0])):
        x, y = j + first[0] - 4.5, i + first[1] - 3
        old_x, old_y = x * math.cos(angle) + y * math.sin(angle) + 4.5, -x * math.sin(angle) + y * math.cos(angle) + 3
        a, b = math.floor(old_x), math.floor(old_y)
        if abs(old_x - round(old_x)) < 1e-9 or abs(old_y - round(old_y)) < 1e-9:
            continue  # a right angle's edge is within rounding
        wanted = np.zeros(2)
        if 0 <= a < 8 and 0 <= b < 5:
            u, v = old_x - a, old_y - b
            wanted = (1 - v) * ((1 - u) * image[b, a] + u * image[b, a + 1])
            wanted = wanted + v * ((1 - u) * image[b + 1, a] + u * image[b + 1, a + 1])
        np.testing.assert_allclose(result[i, j], wanted, atol=1e-12)
    (place,) = turn.places(np.array([[2.0, 5.0]]))
    np.testing.assert_allclose(place, np.array(forth(2, 5)) - first)


def test_boxes_move_with_the_image() -> None:
    box = np.array([[3.0, 2, 4, 5]])
    assert moved(box, (20, 10), Augmentation((20, 10), flip=True)).tolist() == [[12, 2, 4, 5]]
    assert moved(box, (20, 10), Augmentation((10, 30), crop=(1, -2))).tolist() == [[0.5, 8, 2, 15]]
    done = Augmentation((20, 10), degrees=30, crop=(2, 1))
    turn = done.turn()
    assert turn is not None
    middle = turn.places(np.array([[5, 4.5]]))[0]
    np.testing.assert_allclose(moved(box, (20, 10), done), [[middle[0] - 4, middle[1] - 3.5, 4, 5]])


@pytest.mark.parametrize(("left", "upper"), [(-2, 1), (3, -1), (9, 0), (-9, -9), (1, 1)])
def test_a_part_that_lies_outside(left: int, upper: int) -> None:
    image = np.random.default_rng(0).uniform(1, 2, (4, 6, 2))
    part = part_of(image, left, upper, 5, 3)
    for i, j in product(range(3), range(5)):
        y, x = i + upper, j + left
        np.testing.assert_array_equal(part[i, j], image[y, x] if 0 <= y < 4 and 0 <= x < 6 else 0)


def test_the_layer_follows_its_draws() -> None:
    """All is on; the same seed draws the same numbers."""
    x = np.random.default_rng(0).uniform(0, 255, (2, 3, 20, 26))
    labels = labels_of([[4, 3, 12, 9, 1]], [[8, 6, 9, 11, 1]])
    param = Augment(crop_prob=1, shift_x=6, shift_y=4, scale_prob=1, scale_min=0.8, scale_max=1.2, flip_prob=0.5)
    param.rotation_prob = param.hue_rotation_prob = param.desaturation_prob = 1
    param.max_rotate_degree = 10
    text = layer("stride: 4 image_size_x: 24 image_size_y: 16", str(param), "mean_value: 90")
    case = LayerCase(text, x, labels, tops=2, phase=TRAIN)
    rng.set_random_seed(3)
    y, maps = case.forward()
    rng.set_random_seed(3)
    truth, both = Truth(stride=4, image_size_x=24, image_size_y=16), []
    for n in range(2):
        done = drawn(param, (26, 20), (24, 16), rng.generator().random)
        image = recoloured(x[n].transpose(1, 2, 0) / 255, done.hue, done.saturation) - np.float32(90 / 255)
        image = image[:, ::-1] if done.flip else image
        turn = done.turn()
        assert turn is not None
        image = part_of(turn.image(resize_cubic(image, *done.size[::-1])), *done.crop, 24, 16) * 255
        np.testing.assert_allclose(y[n], image.transpose(2, 0, 1), rtol=1e-4, atol=1e-2)
        boxes = moved(labels[n, 0, 1:2, :4], (26, 20), done)
        np.testing.assert_allclose(maps[n], maps_by_loops(boxes.tolist(), [1], truth), rtol=1e-9, atol=1e-9)
        both.append(done)
    assert both[0] != both[1]


def test_a_mean_image_is_resized(tmp_path: Path) -> None:
    mean = np.random.default_rng(0).uniform(0, 255, (3, 4, 5)).astype(np.float32)
    write_binaryproto(tmp_path / "mean.binaryproto", mean)
    x = np.random.default_rng(1).uniform(0, 255, (1, 3, 8, 10))
    truth = "stride: 2 image_size_x: 10 image_size_y: 8"
    text = layer(truth, "", f'mean_file: "{tmp_path / "mean.binaryproto"}"')
    y = LayerCase(text, x, labels_of([]), tops=2).forward()[0]
    wanted = x[0] - resize_cubic(mean.transpose(1, 2, 0), 8, 10).transpose(2, 0, 1)
    np.testing.assert_allclose(y[0], wanted, atol=1e-3)


def test_defaults() -> None:
    truth, augment = Truth(), Augment()
    assert [truth.stride, truth.scale_cvg, truth.gridbox_type, truth.max_cvg_len, truth.min_cvg_len] == [4, 0.5, 0, 50, 50]
    assert [truth.image_size_x, truth.image_size_y, truth.obj_norm, truth.crop_bboxes] == [1248, 384, False, True]
    assert [augment.crop_prob, augment.shift_x, augment.shift_y, augment.scale_max] == [1, 0, 0, 1]
    for name in ("scale_prob", "flip_prob", "rotation_prob", "hue_rotation_prob", "desaturation_prob"):
        assert getattr(augment, name) == pytest.approx(0.33)
    assert [augment.scale_min, augment.max_rotate_degree, augment.hue_rotation] == [pytest.approx(0.7), 1, 15]
    assert augment.desaturation_max == 0.5


def test_boxes_of_no_number_have_no_cell() -> None:
    labels = labels_of([[math.nan, 1, 5, 5, 1], [1, 1, math.inf, 5, 1], [1, 1, 5, 5, math.nan]])
    text = layer("stride: 4 image_size_x: 16 image_size_y: 12 crop_bboxes: false")
    maps = LayerCase(text, np.ones((1, 3, 12, 16)), labels, tops=2).forward()[1]
    assert not maps.any()


SMALL, X = "stride: 4 image_size_x: 16 image_size_y: 12", np.ones((1, 3, 12, 16))


@pytest.mark.parametrize(
    ("text", "x", "labels", "message"),
    [
        (layer("stride: 0"), X, labels_of([]), r"needs stride, image_size_x and image_size_y > 0"),
        (layer(SMALL + " object_class { src: 1 }"), X, labels_of([]), r"an object_class needs src and dst"),
        (layer(SMALL + " object_class { src: 1 dst: 70000 }"), X, labels_of([]), r"dst must be below 65536"),
        (layer(SMALL, "", "mean_value: 1 mean_value: 2"), X, labels_of([]), r"the mean must have one or three values, got 2"),
        (layer(SMALL, "", 'mean_value: 1 mean_file: "a"'), X, labels_of([]), r"mean_file and mean_value cannot both be given"),
        (layer(SMALL), np.ones((1, 1, 12, 16)), labels_of([]), r"images must be \(N, 3, H, W\) with pixels"),
        (layer(SMALL), X, labels_of([], []), r"labels must be \(1, \.\.\.\) with at least 16 numbers for each image"),
        (layer(SMALL), X, np.ones((1, 15)), r"labels must be"),
        (layer(SMALL), X, np.ones((1, 1, 5, 16)), r"image 0 begin with 1 and 1: they must be .* at most 4, and 16"),
        (layer(SMALL), X, labels_of([[1] * 5] * 5), r"image 0 begin with 5 and 16"),
    ],
)
def test_errors(text: str, x: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, x, labels, tops=2).forward()


DIGITS = """
layer { name: "input" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 2 dim: 3 dim: 48 dim: 64 } shape { dim: 2 dim: 1 dim: 5 dim: 16 } } }
layer {
  name: "train_transform" type: "DetectNetTransformation" bottom: "data" bottom: "label"
  top: "transformed_data" top: "transformed_label"
  detectnet_groundtruth_param: {
    stride: 16 scale_cvg: 0.4 gridbox_type: GRIDBOX_MIN coverage_type: RECTANGULAR min_cvg_len: 20 obj_norm: true
    image_size_x: 64 image_size_y: 48 crop_bboxes: false object_class: { src: 1 dst: 0} # obj class 1 -> cvg index 0
  }
  detectnet_augmentation_param: {
    crop_prob: 1 shift_x: 32 shift_y: 32 flip_prob: 0.5 rotation_prob: 0 max_rotate_degree: 5 scale_prob: 0.4 scale_min: 0.8
    scale_max: 1.2 hue_rotation_prob: 0.8 hue_rotation: 30 desaturation_prob: 0.8 desaturation_max: 0.8
  }
  transform_param: { mean_value: 127 }
  include: { phase: TRAIN }
}
layer { name: "slice-label" type: "Slice" bottom: "transformed_label"
  top: "foreground-label" top: "bbox-label" top: "size-label" top: "obj-label" top: "coverage-label"
  slice_param { slice_dim: 1 slice_point: 1 slice_point: 5 slice_point: 7 slice_point: 8 } }
layer { name: "coverage-block" type: "Concat" bottom: "foreground-label" bottom: "foreground-label" bottom: "foreground-label"
  bottom: "foreground-label" top: "coverage-block" concat_param { concat_dim: 1 } }
layer { name: "size-block" type: "Concat" bottom: "size-label" bottom: "size-label" top: "size-block"
  concat_param { concat_dim: 1 } }
layer { name: "obj-block" type: "Concat" bottom: "obj-label" bottom: "obj-label" bottom: "obj-label" bottom: "obj-label"
  top: "obj-block" concat_param { concat_dim: 1 } }
layer { name: "bb-label-norm" type: "Eltwise" bottom: "bbox-label" bottom: "size-block" top: "bbox-label-norm"
  eltwise_param { operation: PROD } }
layer { name: "bb-obj-norm" type: "Eltwise" bottom: "bbox-label-norm" bottom: "obj-block" top: "bbox-obj-label-norm"
  eltwise_param { operation: PROD } }
layer { name: "pool" type: "Pooling" bottom: "transformed_data" top: "pool"
  pooling_param { pool: AVE kernel_size: 16 stride: 16 } }
layer { name: "cvg/classifier" type: "Convolution" bottom: "pool" top: "cvg/classifier"
  convolution_param { num_output: 1 kernel_size: 1 weight_filler { type: "xavier" std: 0.03 } } }
layer { name: "coverage/sig" type: "Sigmoid" bottom: "cvg/classifier" top: "coverage" }
layer { name: "bbox/regressor" type: "Convolution" bottom: "pool" top: "bboxes"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" std: 0.03 } } }
layer { name: "bbox_mask" type: "Eltwise" bottom: "bboxes" bottom: "coverage-block" top: "bboxes-masked"
  eltwise_param { operation: PROD } }
layer { name: "bbox-norm" type: "Eltwise" bottom: "bboxes-masked" bottom: "size-block" top: "bboxes-masked-norm"
  eltwise_param { operation: PROD } }
layer { name: "bbox-obj-norm" type: "Eltwise" bottom: "bboxes-masked-norm" bottom: "obj-block" top: "bboxes-obj-masked-norm"
  eltwise_param { operation: PROD } }
layer { name: "bbox_loss" type: "L1Loss" bottom: "bboxes-obj-masked-norm" bottom: "bbox-obj-label-norm" top: "loss_bbox"
  loss_weight: 2 }
layer { name: "coverage_loss" type: "EuclideanLoss" bottom: "coverage" bottom: "coverage-label" top: "loss_coverage" }
"""


def test_the_training_net_of_digits_runs() -> None:
    """The fields and layers of jetson-inference's detectnet.prototxt, with one pooling layer as its convolutional network."""
    net = Net(parse_net(DIGITS), TRAIN)
    net.blobs["data"].data[...] = np.random.default_rng(0).uniform(0, 255, (2, 3, 48, 64))
    net.blobs["label"].data[...] = labels_of([[8, 6, 40, 30, 1]], [[20, 10, 30, 30, 1], [2, 2, 10, 10, 3]])
    net.forward()
    net.backward()
    assert net.blobs["coverage-label"].data.any()
    assert net.params["bbox/regressor"][0].diff.any() and net.params["cvg/classifier"][0].diff.any()
