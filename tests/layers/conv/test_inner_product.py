"""InnerProduct."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
from first import first
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from loops_in_python import computing

from minicaffe import check_gradient, kernels
from minicaffe.blob import Blob
from minicaffe.compiled import matrix_products as by_tiles
from minicaffe.errors import LayerError
from minicaffe.layers import create
from minicaffe.layers.conv import matrix_products
from minicaffe.threads import set_num_threads

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "InnerProduct" inner_product_param {{ {inside} {fillers} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.gpu_barrier
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transpose", [False, True])
def test_by_hand(transpose: bool, dtype: type) -> None:
    case = LayerCase(text(f"num_output: 3 transpose: {str(transpose).lower()}"), [[1.0, 2.0]], dtype=dtype)
    weight, bias = case.layer.blobs
    matrix = np.array([[1, 10], [2, 20], [3, 30]])
    weight.data[...], bias.data[...] = matrix.T if transpose else matrix, [0.5, 0, 0]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[21.5, 42, 63]])
    assert y.dtype == dtype
    (dx,) = case.backward([[1.0, 0.0, 2.0]])
    np.testing.assert_array_equal(dx, [[7, 70]])
    gradient = np.array([[1, 2], [0, 0], [2, 4]])
    np.testing.assert_array_equal(weight.diff, gradient.T if transpose else gradient)
    np.testing.assert_array_equal(bias.diff, [1, 0, 2])


@pytest.mark.parametrize("case", cases("InnerProduct"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 4


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(-2, 1), st.booleans(), st.booleans())
def test_agrees_with_einsum(shape: list[int], axis: int, bias: bool, transpose: bool) -> None:
    x = normal(*shape)
    options = f"axis: {axis} bias_term: {str(bias).lower()} transpose: {str(transpose).lower()}"
    case = LayerCase(text(f"num_output: 5 {options}"), x)
    leading = shape[: axis % len(shape)]
    weight = case.layer.blobs[0].data
    expected = np.einsum("...k,nk->...n", x.reshape(*leading, -1), weight.T if transpose else weight)
    expected += case.layer.blobs[1].data if bias else 0
    (y,) = case.forward()
    assert y.shape == (*leading, 5)
    np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize("options", ["", "transpose: true", "bias_term: false", "axis: 2", "axis: -1", "axis: 0"])
def test_gradient(options: str) -> None:
    check_gradient(text(f"num_output: 5 {options}"), normal(2, 3, 4))


def test_weight_diffs_accumulate_and_inputs_are_untouched() -> None:
    case = LayerCase(text("num_output: 4"), normal(2, 3))
    before = case.bottom[0].data.copy()
    case.forward()
    case.backward(np.ones((2, 4)))
    once = [b.diff.copy() for b in case.layer.blobs]
    case.backward(np.ones((2, 4)))
    for blob, diff in zip(case.layer.blobs, once, strict=True):
        np.testing.assert_allclose(blob.diff, 2 * diff)
    case.layer.param_propagate_down = [False, False]
    case.backward(np.ones((2, 4)))
    np.testing.assert_allclose(case.layer.blobs[0].diff, 2 * once[0])
    np.testing.assert_array_equal(case.bottom[0].data, before)


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("num_output: 5"), normal(2, 3, 4))
    case.bottom[0].reshape(7, 12)
    assert case.forward()[0].shape == (7, 5)
    case.bottom[0].reshape(0, 3, 4)
    assert case.forward()[0].shape == (0, 5)
    assert case.backward(np.zeros((0, 5)))[0].shape == (0, 3, 4)


def test_blobs_that_are_there_are_kept() -> None:
    first = LayerCase(text("num_output: 5"), normal(2, 3))
    second = create(first.layer.param, dtype=np.float64)
    second.blobs.extend(first.layer.blobs)
    second.connect(first.bottom, [Blob((), np.float64)])
    assert second.blobs[1] is first.layer.blobs[1]
    third = create(first.layer.param)
    third.blobs.add_blob(9)
    with pytest.raises(LayerError, match=r"its blobs have shapes \[\(9,\)\], but it needs \[\(5, 3\), \(5,\)\]"):
        third.connect(first.bottom, [Blob()])


def test_errors() -> None:
    with pytest.raises(LayerError, match="num_output must be > 0, got 0"):
        LayerCase(text(""), normal(2, 3))
    with pytest.raises(LayerError, match=r"axis 2 is out of range for shape \(2, 3\)"):
        LayerCase(text("num_output: 4 axis: 2"), normal(2, 3))
    case = LayerCase(text("num_output: 4"), normal(2, 3, 5))
    case.bottom[0].reshape(2, 3, 6)
    with pytest.raises(LayerError, match=r"its weights take 15 inputs, the bottom of shape \(2, 3, 6\) now gives 18"):
        case.forward()


@pytest.mark.parametrize("transpose", ["false", "true"])
def test_a_weight_gradient_in_blocks(transpose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = LayerCase(text(f"num_output: 7 transpose: {transpose}"), normal(5, 11))
    gradients = []
    for rows, columns in ((matrix_products.ROWS, matrix_products.COLUMNS), (3, 5), (1, 1)):
        monkeypatch.setattr(matrix_products, "ROWS", rows)
        monkeypatch.setattr(matrix_products, "COLUMNS", columns)
        case.layer.blobs[0].diff[...] = 0.5
        case.forward()
        case.backward(normal(5, 7))
        gradients.append(case.layer.blobs[0].diff.copy())
    np.testing.assert_allclose(gradients[1:], [gradients[0]] * 2)
    dweight = 0.5 + normal(5, 7).T @ normal(5, 11)
    np.testing.assert_allclose(gradients[0], dweight.T if transpose == "true" else dweight)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param != "numpy":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with computing(request.param):
        yield


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("numpy", np.float32),
        ("numpy", np.float64),
        ("numba", np.float32),
        ("definitions", np.float64),
        pytest.param("numba", np.float64, marks=pytest.mark.slow, id="numba-float64, which takes long to compile"),
    ],
    indirect=["way"],
)
@pytest.mark.parametrize("rows", [7, 2])
def test_products_shared_out_among_threads(rows: int, dtype: type, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread its columns or rows: the same sums, the same bits again."""
    for name, value in {"LEAST": 1, "FEW": 4, "ROWS": 3, "COLUMNS": 2}.items():
        monkeypatch.setattr(matrix_products, name, value)
    for name, value in {"LEAST": 1, "LARGE": 1, "LEAST_TURNED": 1, "LANES": 1, "MOST_PUT": rows * 5}.items():
        monkeypatch.setattr(by_tiles, name, value)
    random = np.random.default_rng(threads)
    a, b = random.normal(size=(rows, 5)).astype(dtype), random.normal(size=(5, 11)).astype(dtype)
    near = 1e-14 if dtype is np.float64 else 1e-6
    set_num_threads(threads)
    for left, right in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b)), (a[:1], b), (a, b[:, :1])):
        results, shape = [], (len(left), right.shape[1])
        for _ in range(2):
            product, total = np.full(shape, np.nan, dtype), np.ones(shape, dtype)
            matrix_products.multiply(left, right, product)
            matrix_products.add_product(left, right, total)
            results.append((product, total))
        np.testing.assert_allclose(results[0][0], left @ right, atol=near, rtol=near)
        np.testing.assert_allclose(results[0][1], left @ right + 1, atol=near, rtol=near)
        np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize(("most", "in_tiles"), [(20, True), (19, False)])
def test_small_factors_are_put_in_one_piece_for_tiles(most: int, in_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    for name, value in {"LEAST": 1, "LARGE": 1, "LANES": 1, "MOST_PUT": most}.items():
        monkeypatch.setattr(by_tiles, name, value)
    with kernels.using("numba"), patch.object(by_tiles, "_by_tiles") as called:
        matrix_products.multiply(normal(5, 4).T, normal(5, 11), np.empty((4, 11)))
    assert called.called == in_tiles
    assert not in_tiles or called.call_args.args[0].flags.c_contiguous


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize(("rows", "inner", "columns"), [(0, 5, 11), (3, 0, 12), (7, 5, 1), (2, 5, 0), (3, 4, 25)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", first(1, [np.float32, np.float64]))  # to compile for float64 takes 8 s
def test_products_of_few_numbers(
    rows: int, inner: int, columns: int, order: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_products, "LEAST", 1)
    for name, value in (("LEAST", 1), ("LARGE", -1), ("LEAST_TURNED", -1)):
        monkeypatch.setattr(by_tiles, name, value)
    a, b = normal(rows, inner).astype(dtype), np.array(normal(inner, columns), dtype, order=order)
    out, total = np.full((rows, columns), np.nan, dtype), np.ones((rows, columns), dtype)
    matrix_products.multiply(a, b, out)
    matrix_products.add_product(a, b, total)
    close = {"atol": 1e-14} if dtype is np.float64 else {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(out, a @ b, **close)
    np.testing.assert_allclose(total, a @ b + 1, **close)


def test_normalize_by_hand() -> None:
    """Rows (3, 4) and (0, 2) count as (0.6, 0.8) and (0, 1), up to the 1e-6 that is added to 25 and 4."""
    case = LayerCase(text("num_output: 2 normalize: true"), [[1.0, 2.0]])
    weight, bias = case.layer.blobs
    weight.data[...], bias.data[...] = [[3, 4], [0, 2]], [0, 0.5]
    np.testing.assert_allclose(case.forward()[0], [[2.2, 2.5]], atol=1e-6)
    np.testing.assert_array_equal(weight.data, [[3, 4], [0, 2]])
    (dx,) = case.backward([[5.0, 2.0]])
    np.testing.assert_allclose(dx, [[3, 6]], atol=1e-6)
    # du = (5, 10), u du = 11: (5 - 0.6 * 11, 10 - 0.8 * 11) / 5; du = (2, 4), u du = 4: (2, 0) / 2
    np.testing.assert_allclose(weight.diff, [[-0.32, 0.24], [1, 0]], atol=1e-5)


@pytest.mark.parametrize("inside", ["", "transpose: true", "axis: 2", "bias_term: false"])
def test_gradient_with_normalize(inside: str) -> None:
    check_gradient(text(f"num_output: 3 normalize: true {inside}"), normal(2, 3, 4))


def test_normalize_does_not_depend_on_the_rows_lengths() -> None:
    case = LayerCase(text("num_output: 3 normalize: true"), normal(4, 5))
    before = case.forward()[0]
    case.layer.blobs[0].data[...] *= [[100], [3], [50]]
    np.testing.assert_allclose(case.forward()[0], before, rtol=1e-4, atol=1e-4)


# With the weights from a bottom, happynear's.


def of_bottoms(more: str, *bottoms: np.ndarray) -> LayerCase:
    named = " ".join(f'bottom: "{i}"' for i in range(len(bottoms)))
    return LayerCase(f'type: "InnerProduct" {named} inner_product_param {{ {more} }}', *bottoms)


def test_weights_from_a_bottom() -> None:
    x, w, b = normal(2, 3, 4), normal(5, 12), normal(5)
    case = of_bottoms("bias_term: false num_output: 9", x, w)
    np.testing.assert_allclose(case.forward()[0], x.reshape(2, 12) @ w.T)
    case.check_gradient()
    case = of_bottoms("axis: 2", x, w[:, :4], b)
    np.testing.assert_allclose(case.forward()[0], x @ w[:, :4].T + b)
    case.check_gradient()
    assert not case.layer.blobs
    case.bottom[1].reshape(6, 4)
    case.bottom[2].reshape(6)
    assert case.forward()[0].shape == (2, 3, 6)


@pytest.mark.parametrize(
    ("more", "shapes", "message"),
    [
        ("", [(2, 4), (5, 4)], "with two bottoms it needs bias_term: false"),
        ("bias_term: false", [(2, 4), (5, 4), (5,)], "with two bottoms it needs bias_term: false, with three bias_term: true"),
        ("bias_term: false transpose: true", [(2, 4), (5, 4)], "transpose does not go with weights from a bottom"),
        ("bias_term: false", [(2, 4), (5, 3)], r"the weights must be \(M, 4\), got shape \(5, 3\)"),
        ("", [(2, 4), (5, 4), (4,)], "the bias must have 5 numbers, got 4"),
    ],
)
def test_errors_of_weights_from_a_bottom(more: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match='InnerProduct layer "layer": ' + message):
        of_bottoms(more, *map(np.zeros, shapes))
