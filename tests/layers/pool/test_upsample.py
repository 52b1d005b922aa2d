"""Upsample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST
from minicaffe.net import Net

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    return f'type: "Upsample" upsample_param {{ {inside} }}'


def masks(shape: tuple[int, ...], pixels: int) -> np.ndarray:
    """Of each map other pixels, none twice."""
    random = np.random.default_rng(4)
    n, c, h, w = shape
    return np.stack([random.permutation(pixels)[: h * w] for _ in range(n * c)]).reshape(shape).astype(float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_segnets_by_hand(dtype: type) -> None:
    """Two numbers go to one place: the later one stays and gets the gradient."""
    case = LayerCase(text("scale_h: 2 scale_w: 1"), [[[[1.0, 2.0, 3.0]]]], [[[[5.0, 1.0, 5.0]]]], dtype=dtype)
    assert case.forward()[0].tolist() == [[[[0, 2, 0], [0, 0, 3]]]]
    dx, dmask = case.backward(np.array([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]]))
    assert dx.tolist() == [[[[0, 2, 6]]]]
    assert not dmask.any()


def test_yolos_by_hand() -> None:
    case = LayerCase(text("scale: 2"), [[1.0, 2.0], [3.0, 4.0]])
    assert case.forward()[0].tolist() == [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    assert case.backward(np.arange(16.0).reshape(4, 4))[0].tolist() == [[10, 18], [42, 50]]
    np.testing.assert_array_equal(LayerCase('type: "Upsample"', normal(1, 2, 3)).forward()[0], normal(1, 2, 3))


@pytest.mark.parametrize(
    ("inside", "size"),
    [
        ("", (6, 8)),
        ("scale: 2 pad_out_h: true", (5, 8)),
        ("pad_out_h: true pad_out_w: true", (5, 7)),
        ("scale_h: 3 scale_w: 2", (9, 8)),
        ("upsample_h: 4 upsample_w: 5 scale: 7", (4, 5)),
    ],
)
def test_sizes_and_gradient(inside: str, size: tuple[int, int]) -> None:
    case = LayerCase(text(inside), normal(2, 2, 3, 4), masks((2, 2, 3, 4), size[0] * size[1]))
    assert case.forward()[0].shape == (2, 2, *size)
    case.check_gradient()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4)])
def test_gradient_of_yolos(shape: tuple[int, ...]) -> None:
    LayerCase(text("scale: 3"), normal(*shape)).check_gradient()


@settings(deadline=None)
@given(st.data())
def test_it_takes_back_what_max_pooling_took(data: st.DataObject) -> None:
    """What is pooled from the top is x, where no two numbers share a place; backward is the transpose."""
    h, w, scale = (data.draw(st.integers(1, 4)) for _ in range(3))
    x = normal(2, 2, h, w)
    mask = masks(x.shape, h * w * scale**2)
    case = LayerCase(text(f"scale: {scale}"), x, mask)
    (y,) = case.forward()
    index = mask.reshape(4, -1).astype(int)
    np.testing.assert_array_equal(np.take_along_axis(y.reshape(4, -1), index, axis=1), x.reshape(4, -1))
    assert np.count_nonzero(y) == x.size
    dy = normal(*y.shape)
    assert (case.backward(dy)[0] * x).sum() == pytest.approx((dy * y).sum())


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("shape", [(1, 2, 150, 300), (2, 3, 5, 7)])
def test_of_many_numbers_for_a_pixel_the_last_stays(shape: tuple[int, ...]) -> None:
    """Maps of more numbers than are converted at once, and several maps at once."""
    n, c, h, w = shape
    mask = np.random.default_rng(5).integers(0, 4 * h * w, (n * c, h * w))
    x, dy = normal(*shape).astype(np.float32), normal(n, c, 2 * h, 2 * w).astype(np.float32)
    case = LayerCase(text("scale: 2"), x, mask.reshape(shape).astype(float), dtype=np.float32)
    (y,) = case.forward()
    dx = case.backward(dy)[0]
    for i, index in enumerate(mask):
        last = {int(pixel): number for number, pixel in enumerate(index)}
        pixels, numbers = np.array(list(last)), np.array(list(last.values()))
        wanted, gradient = np.zeros(4 * h * w), np.zeros(h * w)
        wanted[pixels] = x.reshape(n * c, -1)[i, numbers]
        gradient[numbers] = dy.reshape(n * c, -1)[i, pixels]
        np.testing.assert_array_equal(y.reshape(n * c, -1)[i], wanted)
        np.testing.assert_array_equal(dx.reshape(n * c, -1)[i], gradient)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_yolos_is_numpys_repeat(c: int, h: int, w: int, scale: int) -> None:
    x = normal(2, c, h, w)
    case = LayerCase(text(f"scale: {scale}"), x)
    np.testing.assert_array_equal(case.forward()[0], x.repeat(scale, 2).repeat(scale, 3))


def test_no_gradient_where_none_is_asked_for() -> None:
    for bottoms in ([normal(1, 2, 3, 4)], [normal(1, 2, 3, 4), masks((1, 2, 3, 4), 48)]):
        case = LayerCase(text("scale: 2"), *bottoms)
        case.forward()
        case.bottom[0].diff[...] = 7
        assert (case.backward(np.ones((1, 2, 6, 8)), propagate_down=[False] * len(bottoms))[0] == 7).all()


@pytest.mark.parametrize("shape", [(1, 3, 2, 5), (0, 3, 2, 5)])
@pytest.mark.parametrize("bottoms", [1, 2])
def test_a_second_reshape(shape: tuple[int, ...], bottoms: int) -> None:
    case = LayerCase(text("scale: 2"), *[np.zeros((2, 2, 3, 4))] * bottoms)
    for blob, data in zip(case.bottom, (normal(*shape), masks(shape, 40) if shape[0] else np.zeros(shape))):
        blob.reshape(shape)
        blob.data[...] = data
    assert case.forward()[0].shape == (*shape[:2], 4, 10)
    assert case.backward(np.ones((*shape[:2], 4, 10)))[0].shape == shape


SEGNET = """input: "x" input_shape { dim: 1 dim: 2 dim: 4 dim: 6 }
layer { name: "down" type: "Pooling" bottom: "x" top: "y" top: "places" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "up" type: "Upsample" bottom: "y" bottom: "places" top: "z" upsample_param { scale: 2 } }
"""


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_mask_without_an_index(value: float) -> None:
    """Caffe's MAX pooling leaves -1 where no number of a window is greater than -FLT_MAX."""
    net = Net(parse_net(SEGNET), TEST)
    net.blobs["x"].data[0, 1, 2:, 2:4] = value
    message = (
        'Upsample layer "up": the mask "places" holds -1, which is no index: the window that was pooled had only NaN or -inf'
    )
    with pytest.raises(LayerError, match=message):
        np.asarray(net.forward()["z"])


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("wrong", [24.0, -2.0, 1.5, np.nan])
def test_an_index_that_the_top_does_not_have(wrong: float) -> None:
    mask = np.zeros((1, 1, 2, 3))
    mask[0, 0, 1, 1] = wrong
    case = LayerCase(text("scale: 2"), normal(1, 1, 2, 3), mask, dtype=np.float32)
    with pytest.raises(LayerError, match=rf"{wrong:g} is not a whole number in \[0, 24\)"):
        case.forward()
        np.asarray(case.top[0].data)


@pytest.mark.parametrize(
    ("inside", "shapes", "message"),
    [
        ("scale: 0", ((2, 2),), "the scale must be > 0, got 0"),
        ("scale_h: 2", ((2, 2),), r"scale_h is for two bottoms \(SegNet's\)"),
        ("", ((2,),), "at least two axes"),
        ("scale_h: 2", ((1, 1, 2, 2),) * 2, "give scale, or scale_h and scale_w"),
        ("scale: 2 scale_h: 2 scale_w: 2", ((1, 1, 2, 2),) * 2, "give scale, or scale_h and scale_w"),
        ("upsample_h: 2", ((1, 1, 2, 2),) * 2, "go together, only one is given"),
        ("upsample_h: 2 upsample_w: 0", ((1, 1, 2, 2),) * 2, r"must be > 0, got \(2, 0\)"),
        ("scale: 3 pad_out_w: true", ((1, 1, 2, 2),) * 2, "pad_out_w needs a scale of 2, got 3"),
        ("", ((1, 1, 2, 2), (1, 1, 2, 3)), "must have one shape of 4 axes"),
    ],
)
def test_errors(inside: str, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), *(np.zeros(shape) for shape in shapes))
