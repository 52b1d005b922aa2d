"""MultiStageMeanfield, and the lattice that filters for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import kernels
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.layers.forks.crf.permutohedral import Lattice

pytestmark = [pytest.mark.usefixtures("device", "weights"), pytest.mark.gpu_barrier]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spatial.par").write_text("3 2 1\n")
    Path("bilateral.par").write_text("5.0\n4.0\n3.0 7\n")


def text(iterations: int = 2, thetas: str = "theta_alpha: 3 theta_beta: 2 theta_gamma: 1.5") -> str:
    return f'type: "MultiStageMeanfield" multi_stage_meanfield_param {{ num_iterations: {iterations} {thetas} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def bottoms(n: int, c: int, h: int, w: int) -> list[np.ndarray]:
    return [normal(n, c, h, w), normal(n, c, h, w)[::-1].copy(), 3 * normal(n, 3, h, w)]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def test_one_pixel_by_hand() -> None:
    """A filter of one pixel, over its own sum, is the pixel."""
    unary, q = np.array([1.0, -2.0, 0.5]), np.array([0.0, 1.0, 2.0])
    case = LayerCase(text(), unary.reshape(1, 3, 1, 1), q.reshape(1, 3, 1, 1), np.full((1, 3, 1, 1), 9.0))
    for _ in range(2):
        q = unary + [8, 6, 4] * softmax(q)  # compat is -1, spatial + bilateral 3 + 5, 2 + 4, 1 + 3
    np.testing.assert_allclose(case.forward()[0].reshape(3), q, rtol=1e-6)
    case.layer.blobs[2].data[0, 0] = [[0, 1, 0], [0, 0, 2], [0, 0, 0]]  # compat as a matrix: class 0 minds class 1
    q = np.array([0.0, 1.0, 2.0])
    for _ in range(2):
        messages = [8, 6, 4] * softmax(q)
        q = unary - [messages[1], 2 * messages[2], 0]
    np.testing.assert_allclose(case.forward()[0].reshape(3), q, rtol=1e-6)


@pytest.mark.slow
def test_gradient() -> None:
    with kernels.using("numpy"):
        case = LayerCase(text(2), *bottoms(2, 3, 3, 2))
        for i, blob in enumerate(case.layer.blobs):
            blob.data[...] = np.random.default_rng(i).normal(size=blob.shape)
        case.check_gradient()


def test_both_ways_compute_the_same() -> None:
    tops = []
    for way in ("numpy", "auto"):
        with kernels.using(way):
            case = LayerCase(text(), *bottoms(1, 3, 6, 7), dtype=np.float32)
            tops.append((case.forward()[0].copy(), *case.backward(np.ones((1, 3, 6, 7)))[:2]))
    for one, other in zip(*tops):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 5), st.integers(1, 40), st.booleans())
def test_the_reverse_filter_is_the_transposed_one(d: int, points: int, compiled: bool) -> None:
    dtype, most = (np.float32, 1e-4) if compiled else (np.float64, 1e-9)
    x, y = normal(2, points).astype(dtype), normal(points, 2).T.astype(dtype)
    with kernels.using("auto" if compiled else "numpy"):
        lattice = Lattice(2 * normal(points, d), x.dtype)
        assert (lattice.filter(x) * y).sum() == pytest.approx((x * lattice.filter(y, reverse=True)).sum(), rel=most, abs=most)
    np.testing.assert_allclose(lattice.shares.sum(axis=1), 1, atol=1e-5)
    assert lattice.shares.min() > -1e-5


def test_the_filter_is_about_a_gaussian() -> None:
    """Of a row of points a tenth of a deviation apart, in the middle."""
    places = np.arange(-60, 61)[:, None] / 10
    lattice = Lattice(places, np.dtype(np.float64))
    (y,) = lattice.filter((places.T == 0).astype(float))
    wanted = np.exp(-(places[:, 0] ** 2) / 2)
    assert np.abs(y / y.sum() - wanted / wanted.sum()).max() < 0.1 * (wanted / wanted.sum()).max()


@given(st.permutations(range(3)))
def test_the_order_of_equal_classes_does_not_count(order: list[int]) -> None:
    unary, q, image = bottoms(1, 3, 4, 5)
    case, other = LayerCase(text(), unary, q, image), LayerCase(text(), unary[:, order], q[:, order], image)
    for blob, same in zip(case.layer.blobs[:2], other.layer.blobs):
        blob.data[...] = same.data[...] = np.eye(3)
    np.testing.assert_allclose(case.forward()[0][:, order], other.forward()[0], rtol=1e-9)


def test_a_second_reshape() -> None:
    case = LayerCase(text(), *bottoms(1, 3, 4, 5))
    case.forward()
    for blob, array in zip(case.bottom, bottoms(2, 3, 5, 3)):
        blob.reshape(*array.shape)
        blob.data[...] = array
    fresh = LayerCase(text(), *bottoms(2, 3, 5, 3))
    np.testing.assert_array_equal(case.forward()[0], fresh.forward()[0])


def test_weights_of_few_classes() -> None:
    Path("spatial.par").write_text("3")
    with pytest.warns(PrototxtWarning, match=r"spatial.par has 1 numbers for 3 classes: the others' are 0"):
        case = LayerCase(text(), *bottoms(1, 3, 4, 5))
    assert case.layer.blobs[0].data[0, 0].diagonal().tolist() == [3, 0, 0]


def test_a_missing_file_and_one_without_numbers() -> None:
    Path("bilateral.par").write_text("five")
    with pytest.raises(LayerError, match=r"bilateral.par: could not convert string to float: 'five'"):
        LayerCase(text(), *bottoms(1, 3, 4, 5))
    Path("spatial.par").unlink()
    with pytest.raises(LayerError, match=r"needs the file spatial.par, with a weight for each of 3 classes: .*No such file"):
        LayerCase(text(), *bottoms(1, 3, 4, 5))


@pytest.mark.parametrize(
    ("param", "shapes", "message"),
    [
        (text(0), [(1, 3, 4, 5)] * 3, "num_iterations must be > 0"),
        (text(1, "theta_beta: 0"), [(1, 3, 4, 5)] * 3, "theta_beta must be > 0, got 0"),
        (text(), [(1, 2, 4, 5), (1, 2, 5, 4), (1, 3, 4, 5)], "scores of one shape"),
        (text(), [(2, 2, 4, 5), (2, 2, 4, 5), (1, 3, 4, 5)], r"the image must be \(2, 3, 4, 5\), got \(1, 3, 4, 5\)"),
    ],
)
def test_errors(param: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(param, *(np.zeros(shape) for shape in shapes))


def test_an_image_that_is_not_finite_or_too_far_apart() -> None:
    unary, q, image = bottoms(1, 3, 4, 5)
    for wrong, message in ((np.nan, "the image is not finite"), (1e15, "too far apart")):
        image[0, :, 1, 2] = wrong
        with pytest.raises(LayerError, match=message):
            LayerCase(text(), unary, q, image).forward()


@pytest.mark.parametrize("name", ["theta_alpha", "theta_gamma"])
def test_a_theta_that_leaves_pixels_infinitely_far_apart(name: str) -> None:
    with pytest.raises(LayerError, match="too far apart"):
        LayerCase(text(1, f"{name}: 1e-45"), *bottoms(1, 3, 4, 5), dtype=np.float32).forward()
