"""Normalize."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

FORMS = ["", "across_spatial: false", "channel_shared: false", "across_spatial: false channel_shared: false"]


def text(inside: str = "") -> str:
    return f'type: "Normalize" norm_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Two channels at two positions: (3, 4) and (0, 2), of length 5 and 2; over the whole image sqrt(29)."""
    x = [[[[3.0, 0.0]], [[4.0, 2.0]]]]
    case = LayerCase(text("across_spatial: false channel_shared: false"), x, dtype=dtype)
    case.layer.blobs[0].data[...] = [10, 20]
    (y,) = case.forward()
    assert y.dtype == dtype
    np.testing.assert_allclose(y, [[[[6, 0]], [[16, 20]]]], rtol=1e-6)
    case.backward(np.ones((1, 2, 1, 2)))
    np.testing.assert_allclose(case.layer.blobs[0].diff, [0.6, 1.8], rtol=1e-6)
    whole = LayerCase(text("scale_filler { value: 2 }"), x, dtype=dtype)
    np.testing.assert_allclose(whole.forward()[0], 2 * np.array(x) / np.sqrt(29), rtol=1e-6)
    assert whole.layer.blobs[0].shape == ()


@pytest.mark.parametrize("inside", FORMS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4), (2, 3, 1)])
def test_gradient(inside: str, shape: tuple[int, ...]) -> None:
    filler = ' scale_filler { type: "uniform" min: 1 max: 3 }'
    LayerCase(text(inside + filler), normal(*shape)).check_gradient()


def test_the_scales_diff_accumulates_and_a_scale_of_zero_learns() -> None:
    case = LayerCase(text("scale_filler { value: 0 }"), normal(2, 3, 4))
    for _ in range(2):
        case.forward()
        case.backward(normal(2, 3, 4))
    x = normal(2, 3, 4)
    once = (np.square(x).sum(axis=(1, 2)) / np.sqrt(np.square(x).sum(axis=(1, 2)))).sum()
    np.testing.assert_allclose(case.layer.blobs[0].diff, 2 * once)


@given(st.integers(1, 3), st.integers(1, 4), st.floats(0.1, 100))
def test_length_is_the_scale_whatever_the_size(images: int, width: int, size: float) -> None:
    x = normal(images, 3, 2, width) * size
    case = LayerCase(text("across_spatial: false scale_filler { value: 7 }"), x)
    np.testing.assert_allclose(np.sqrt(np.square(case.forward()[0]).sum(axis=1)), 7, rtol=1e-6)
    np.testing.assert_array_equal(case.bottom[0].data, x)
    whole = LayerCase(text("scale_filler { value: 7 }"), x).forward()[0]
    np.testing.assert_allclose(np.sqrt(np.square(whole).sum(axis=(1, 2, 3))), 7, rtol=1e-6)


def test_zeros_stay_zeros() -> None:
    case = LayerCase(text("across_spatial: false"), np.zeros((1, 3, 2, 2)), dtype=np.float32)
    assert (case.forward()[0] == 0).all()
    assert np.isfinite(case.backward(np.ones((1, 3, 2, 2)))[0]).all()


def test_second_reshape_and_no_images() -> None:
    case = LayerCase(text("across_spatial: false channel_shared: false"), normal(2, 3, 4, 5))
    case.forward()
    case.bottom[0].reshape(0, 3, 7, 5)
    assert case.forward()[0].shape == (0, 3, 7, 5)
    case.backward()
    assert (case.layer.blobs[0].diff == 0).all()


def test_errors() -> None:
    with pytest.raises(LayerError, match=r'Normalize layer "layer": takes a bottom of at least 2 axes .*got shape \(3,\)'):
        LayerCase(text(), normal(3))
    case = LayerCase(text("channel_shared: false"), normal(2, 3, 4))
    case.bottom[0].reshape(2, 5, 4)
    with pytest.raises(LayerError, match="the bottom has 5 channels, the scale is for 3"):
        case.forward()


# happynear's, by normalize_param or a second top.


def typed(inside: str) -> str:
    return f'type: "Normalize" normalize_param {{ {inside} }}'


def test_happynears_by_hand() -> None:
    x = np.array([[3.0, -4.0], [0.0, 2.0]])
    y, n = LayerCase(typed(""), x, tops=2).forward()
    assert (y.shape, n.shape) == ((2, 2, 1, 1), (2, 1, 1, 1))
    np.testing.assert_allclose(n.reshape(2, 1), [[5], [2]], rtol=1e-6)
    np.testing.assert_allclose(y.reshape(2, 2), [[0.6, -0.8], [0, 1]], rtol=1e-6)
    y, n = LayerCase(typed("normalize_type: 'L1'"), x, tops=2).forward()
    np.testing.assert_allclose(n.reshape(2, 1), [[7], [2]], rtol=1e-6)
    np.testing.assert_allclose(y.reshape(2, 2), [[3 / 7, -4 / 7], [0, 1]], rtol=1e-6)
    assert not LayerCase(typed(""), x).layer.blobs
    assert LayerCase('type: "Normalize"', x, tops=2).layer.by_type


@pytest.mark.parametrize("kind", ["L1", "L2"])
@pytest.mark.parametrize("tops", [1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 7)])
def test_happynears_gradient(kind: str, tops: int, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).choice([-1, 1], shape) * np.random.default_rng(2).uniform(0.5, 2, shape)
    LayerCase(typed(f"normalize_type: '{kind}' bp_norm: true"), x, tops=tops).check_gradient()


def test_the_norms_gradient_counts_with_bp_norm_alone() -> None:
    for inside, expected in (("", 0), ("bp_norm: true", 1)):
        case = LayerCase(typed(f"normalize_type: 'L1' {inside}"), np.ones((1, 3)), tops=2)
        case.forward()
        np.testing.assert_allclose(case.backward(np.zeros((1, 3, 1, 1)), np.ones((1, 1, 1, 1)))[0], np.full((1, 3), expected))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (typed("normalize_type: 'L3'"), "normalize_type must be L1 or L2, got 'L3'"),
        (typed("fix_gradient: true"), "fix_gradient, of happynear's caffe-windows, is not built in"),
        (typed("") + " norm_param { }", "norm_param is SSD's, normalize_param and a second top are happynear's"),
    ],
)
def test_happynears_errors(text: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, np.ones((2, 3)))


def test_where_eps_is_added_must_be_the_same() -> None:
    field = 'type: "Normalize" norm_param { add_eps_before_sqrt: %s }'
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 5))
    (bare,) = LayerCase('type: "Normalize" norm_param {}', x).forward()
    np.testing.assert_array_equal(LayerCase(field % "true", x).forward()[0], bare)
    with pytest.raises(
        LayerError, match=r"add_eps_before_sqrt: false, for .* sqrt\(sum x\^2\) \+ eps \(Synopsys.* is not built in"
    ):
        LayerCase(field % "false", x)


def test_pspnets_is_refused_with_fields_that_compute_it() -> None:
    x = np.random.default_rng(3).normal(size=(2, 3, 4, 5))
    with pytest.raises(LayerError, match=r"the same is norm_param \{ eps: 0 \} with param \{ lr_mult: 0 \}"):
        LayerCase('type: "Normalize"', x, fork="pspnet")
    (y,) = LayerCase('type: "Normalize" norm_param { eps: 0 } param { lr_mult: 0 }', x, fork="pspnet").forward()
    np.testing.assert_allclose(y, x / np.sqrt((x**2).sum(axis=(1, 2, 3), keepdims=True)))
    (y,) = LayerCase('type: "Normalize"', x, fork="synopsys").forward()  # SSD's defaults
    np.testing.assert_allclose(y, x / np.sqrt((x**2).sum(axis=(1, 2, 3), keepdims=True) + 1e-10))
