"""Parameter."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.layers import create


def text(*dims: int) -> str:
    return f'type: "Parameter" parameter_param {{ shape {{ {" ".join(f"dim: {d}" for d in dims)} }} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase(text(2, 3), dtype=dtype)
    assert not case.forward()[0].any()
    case.layer.blobs[0].data[...] = [[1, 2, 3], [4, 5, 6]]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[1, 2, 3], [4, 5, 6]])
    assert y.dtype == dtype
    case.backward(np.full((2, 3), 2.0))
    case.backward(np.full((2, 3), 5.0))
    np.testing.assert_array_equal(case.layer.blobs[0].diff, np.full((2, 3), 7.0))
    case.layer.param_propagate_down = [False]
    case.backward(np.full((2, 3), 5.0))
    np.testing.assert_array_equal(case.layer.blobs[0].diff, np.full((2, 3), 7.0))


@pytest.mark.parametrize("case", cases("Parameter"))
def test_golden(case: str) -> None:
    assert run_case(case) == 3


@given(st.lists(st.integers(0, 4), max_size=4))
def test_any_shape(dims: list[int]) -> None:
    case = LayerCase(text(*dims))
    assert case.forward()[0].shape == tuple(dims)
    assert case.layer.blobs[0].shape == tuple(dims)


def test_gradient() -> None:
    LayerCase(text(2, 3, 4)).check_gradient()


def test_a_filler_of_the_blob() -> None:
    case = LayerCase(
        'type: "Parameter" parameter_param { shape { dim: 2 dim: 3 } blob_filler { type: "constant" value: 1.5 } }'
    )
    assert case.forward()[0].tolist() == [[1.5] * 3] * 2


def test_the_weight_of_another_layer_is_kept_if_it_fits() -> None:
    first = LayerCase(text(3))
    second = create(first.layer.param, dtype=np.float64)
    second.blobs.extend(first.layer.blobs)
    top = Blob((), np.float64)
    second.connect([], [top])
    assert second.blobs[0] is first.layer.blobs[0]
    assert top.shape == (3,)
    third = create(first.layer.param)
    third.blobs.add_blob(4)
    with pytest.raises(LayerError, match=r"its blobs have shapes \[\(4,\)\], but it needs \[\(3,\)\]"):
        third.connect([], [Blob()])
