"""PriorBox."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.ssd.prior_box import aspect_ratios
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.tracing.summary import memory_needs

IMAGE = (40, 60)


def case(inside: str, height: int = 2, width: int = 3, image: tuple[int, int] = IMAGE, dtype: type = np.float64) -> LayerCase:
    text = f'type: "PriorBox" prior_box_param {{ {inside} }}'
    return LayerCase(text, np.zeros((1, 4, height, width)), np.zeros((1, 3, *image)), dtype=dtype)


def boxes(inside: str, **sizes: object) -> np.ndarray:
    return case(inside, **sizes).forward()[0][0, 0].reshape(-1, 4)  # type: ignore[arg-type]


def test_by_hand() -> None:
    """A map of 1 x 2 over 40 x 80 pixels: centres (20, 20) and (60, 20); 8 x 8, sqrt(8 * 18) = 12, then 16 x 4 and 4 x 16."""
    y = case("min_size: 8 max_size: 18 aspect_ratio: 4 variance: 0.1 variance: 0.2 variance: 0.3 variance: 0.4", 1, 2, (40, 80))
    (top,) = y.forward()
    assert top.shape == (1, 2, 1 * 2 * 4 * 4)
    pixels = top[0, 0].reshape(2, 4, 4) * [80, 40, 80, 40]
    expected = np.array([[16, 16, 24, 24], [14, 14, 26, 26], [12, 18, 28, 22], [18, 12, 22, 28]])
    np.testing.assert_allclose(pixels[0], expected, rtol=1e-6)
    np.testing.assert_allclose(pixels[1], expected + np.array([40, 0, 40, 0]), rtol=1e-6)
    np.testing.assert_allclose(top[0, 1].reshape(-1, 4), np.tile([0.1, 0.2, 0.3, 0.4], (8, 1)), rtol=1e-6)


def test_a_net_that_is_run_again_and_again_keeps_the_boxes(loops_way: str) -> None:
    text = (
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 50 dim: 90 } } }'
        'layer { name: "y" type: "PriorBox" bottom: "data" bottom: "data" top: "y" prior_box_param { min_size: 8 } }'
    )
    nets = [Net(parse_net(text, "made.prototxt"), TEST) for _ in range(2)]
    nets[0].forward()  # what is made once in a process
    net, data = nets[1], nets[1].blobs["y"].count * 4
    kept = memory_needs(net).kept
    tracemalloc.start()
    try:
        net.forward()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept == (data if loops_way == "numba" else 0)
    assert held == pytest.approx(data + kept, abs=20_000)


def reference(height: int, width: int, mins: list[int], maxs: list[int], ratios: list[float]) -> np.ndarray:
    """The formula in plain loops over IMAGE; step and offset by default."""
    rows = []
    for h in range(height):
        for w in range(width):
            x, y = (w + 0.5) * IMAGE[1] / width, (h + 0.5) * IMAGE[0] / height
            for i, low in enumerate(mins):
                sides = [(low, low)]
                if maxs:
                    sides.append((math.sqrt(low * maxs[i]),) * 2)
                for ratio in ratios:
                    sides += [(low * math.sqrt(r), low / math.sqrt(r)) for r in (ratio, 1 / ratio)]
                for a, b in sides:
                    rows.append([x - a / 2, y - b / 2, x + a / 2, y + b / 2])
    return np.array(rows) / [IMAGE[1], IMAGE[0], IMAGE[1], IMAGE[0]]


@given(st.integers(1, 4), st.integers(1, 5), st.lists(st.integers(1, 30), min_size=1, max_size=3), st.booleans())
def test_as_plain_loops(height: int, width: int, mins: list[int], with_max: bool) -> None:
    maxs = [low + 5 for low in mins] if with_max else []
    inside = " ".join([f"min_size: {m}" for m in mins] + [f"max_size: {m}" for m in maxs] + ["aspect_ratio: 2 aspect_ratio: 3"])
    expected = reference(height, width, mins, maxs, [2, 3])
    np.testing.assert_allclose(boxes(inside, height=height, width=width), expected, rtol=1e-5, atol=1e-6)


def test_sizes_are_cut_to_whole_pixels_as_in_the_original() -> None:
    np.testing.assert_array_equal(boxes("min_size: 8.9 max_size: 18.9"), boxes("min_size: 8 max_size: 18"))


def test_steps_offset_image_size_and_clip() -> None:
    """One box of 10 x 10 at (0 + 0.25) * 20, (0 + 0.25) * 8: x from 0 to 10, y from -3 to 7, of an image of 50 x 100."""
    first = boxes("min_size: 10 offset: 0.25 step_w: 20 step_h: 8 img_w: 100 img_h: 50")[0]
    np.testing.assert_allclose(first, [0, -0.06, 0.1, 0.14], rtol=1e-6)
    clipped = boxes("min_size: 10 offset: 0.25 step_w: 20 step_h: 8 img_w: 100 img_h: 50 clip: true")
    assert clipped[0, 1] == 0 and clipped.min() == 0 and clipped.max() <= 1
    square = boxes("min_size: 10 step: 8 img_size: 100")[1]
    np.testing.assert_allclose(square, [0.07, -0.01, 0.17, 0.09], rtol=1e-6)


def test_aspect_ratios() -> None:
    assert aspect_ratios([2, 1, 2, 0.5], flip=True) == [1, 2, 0.5]
    assert aspect_ratios([1, 2], flip=False) == [1, 2]


def test_variance_float32_zero_diffs_and_another_map() -> None:
    run = case("min_size: 8", dtype=np.float32)
    (top,) = run.forward()
    assert top.dtype == np.float32 and (top[0, 1] == np.float32(0.1)).all()
    assert all((diff == 0).all() for diff in run.backward(np.ones_like(top)))
    run.bottom[0].reshape(5, 4, 1, 7)
    assert run.forward()[0].shape == (1, 2, 28)
    run.bottom[0].reshape(0, 4, 0, 7)
    assert run.forward()[0].shape == (1, 2, 0)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("", "needs at least one min_size"),
        ("min_size: 0.5", "min_size must be >= 1, got 0.5"),
        ("min_size: 8 aspect_ratio: 0", "aspect_ratio must be > 0, got 0"),
        ("min_size: 8 min_size: 9 max_size: 12", "1 max_size for 2 min_size: give one for each, or none"),
        ("min_size: 8 max_size: 8", "max_size 8 must be greater than min_size 8"),
        ("min_size: 8 variance: 0", "variance must be > 0, got 0"),
        ("min_size: 8 variance: 1 variance: 1", "give one variance or 4, got 2"),
        ("min_size: 8 img_size: 5 img_h: 5", "give img_size, or img_h and img_w, not both"),
        ("min_size: 8 img_h: 5", "img_w must be > 0, got 0"),
        ("min_size: 8 step: 0", "step must be > 0, got 0"),
        ("min_size: 8 step: 2 step_w: 2", "give step, or step_h and step_w, not both"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='PriorBox layer "layer": ' + message):
        case(inside)


def test_bottoms_must_be_maps() -> None:
    with pytest.raises(LayerError, match=r"bottom 1 must have 4 axes \(N, C, H, W\), got shape \(1, 3\)"):
        LayerCase('type: "PriorBox" prior_box_param { min_size: 8 }', np.zeros((1, 2, 3, 4)), np.zeros((1, 3)))


def test_too_many_boxes_are_refused_before_they_are_made() -> None:
    ratios = " ".join(f"aspect_ratio: {1 + i / 100:.2f}" for i in range(1, 50))
    with pytest.raises(LayerError, match="may give 10,100 boxes at each position; at most 10,000 are made"):
        case("min_size: 3 " * 101 + ratios)


@pytest.mark.parametrize("fork", ["", "textboxes"])
def test_each_box_twice(fork: str) -> None:
    """TextBoxes', and OpenCV's offsets: each box in the cell's middle, then half a cell lower. Sizes are not cut."""
    offsets = "" if fork else "offset_h: 0.5 offset_w: 0.5 offset_h: 1 offset_w: 0.5"
    text = f'type: "PriorBox" prior_box_param {{ min_size: 8.5 max_size: 18 aspect_ratio: 4 flip: false {offsets} }}'
    made = LayerCase(text, np.zeros((1, 4, 1, 2)), np.zeros((1, 3, 40, 80)), fork=fork)
    (top,) = made.forward()
    assert top.shape == (1, 2, 1 * 2 * 3 * 2 * 4)
    pixels = top[0, 0].reshape(2, 3, 2, 4) * [80, 40, 80, 40]
    half = [[4.25, 4.25], [math.sqrt(8.5 * 18) / 2] * 2, [8.5, 2.125]]
    for (down, right), boxes_there in zip(((20, 20), (40, 20)), pixels[0].transpose(1, 0, 2)):
        expected = [[right - w, down - h, right + w, down + h] for w, h in half]
        np.testing.assert_allclose(boxes_there, expected, rtol=1e-6)
    np.testing.assert_allclose(pixels[1], pixels[0] + [40, 0, 40, 0], rtol=1e-6)
    assert made.layer.choice is not None and made.layer.choice.whose == ("TextBoxes" if fork else "OpenCV")


def test_one_pair_of_offsets_is_the_offset() -> None:
    one, other = (
        boxes(f"min_size: 8 aspect_ratio: 2 {inside}") for inside in ("offset: 0.25", "offset_h: 0.25 offset_w: 0.25")
    )
    assert (one == other).all()


@pytest.mark.parametrize("inside", ["offset_h: 0.5", "offset_h: 1 offset_w: 1 offset: 1", "offset_h: 1 offset_w: 1 " * 3])
def test_offsets_that_do_not_go_together(inside: str) -> None:
    with pytest.raises(LayerError, match="give one or two offset_h and as many offset_w, without offset; got"):
        case(f"min_size: 8 {inside}")


def test_faceboxes_makes_21_boxes() -> None:
    """16 for 32, shifted by -16, -8, 0 or 8 both ways, rows first; 4 for 64, by -16 or 0; one for 128; a pixel smaller."""
    text = 'type: "PriorBox" prior_box_param { min_size: 32 min_size: 64 min_size: 128 step: 32 clip: false }'
    made = LayerCase(text, np.zeros((1, 1, 2, 2)), np.zeros((1, 3, 64, 64)), fork="faceboxes")
    (top,) = made.forward()
    assert top.shape == (1, 2, 2 * 2 * 21 * 4)
    expected = [
        [16 + x - 15.5, 16 + y - 15.5, 16 + x + 15.5, 16 + y + 15.5] for y in range(-16, 9, 8) for x in range(-16, 9, 8)
    ]
    expected += [[16 + x - 31.5, 16 + y - 31.5, 16 + x + 31.5, 16 + y + 31.5] for y in (-16, 0) for x in (-16, 0)]
    expected += [[16 - 63.5, 16 - 63.5, 16 + 63.5, 16 + 63.5]]
    pixels = top[0, 0].reshape(2, 2, 21, 4) * 64
    np.testing.assert_allclose(pixels[0, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(pixels[1, 0] - [0, 32, 0, 32], expected, rtol=1e-6)
    assert str(made.layer.choice) == "PriorBox of FaceBoxes: fork faceboxes"


def test_faceboxes_other_sizes_are_one_box_a_pixel_smaller_and_others_are_refused() -> None:
    def made(inside: str) -> LayerCase:
        text = f'type: "PriorBox" prior_box_param {{ {inside} }}'
        return LayerCase(text, np.zeros((1, 1, 1, 1)), np.zeros((1, 3, 64, 64)), fork="faceboxes")

    np.testing.assert_allclose(made("min_size: 16").forward()[0][0, 0] * 64, [24.5, 24.5, 39.5, 39.5], rtol=1e-6)
    with pytest.raises(LayerError, match=r"FaceBoxes' Caffe has room for 1 boxes at each position, but .* give 16"):
        made("min_size: 32")
