"""SparseInnerProduct, which is InnerProduct of dense blobs: see test_inner_product.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(kind: str, more: str = "num_output: 3") -> str:
    fillers = 'weight_filler { type: "gaussian" } bias_filler { type: "constant" value: 2 }'
    return f'type: "{kind}" inner_product_param {{ {more} {fillers} }}'


def test_it_is_inner_product() -> None:
    x = np.zeros((2, 5))
    x[0, 3], x[1, 0] = 4, -2
    sparse, dense = LayerCase(text("SparseInnerProduct"), x), LayerCase(text("InnerProduct"), x)
    dense.layer.blobs[0].data[...] = sparse.layer.blobs[0].data
    np.testing.assert_array_equal(sparse.forward()[0], dense.forward()[0])
    np.testing.assert_allclose(sparse.top[0].data[0], 4 * sparse.layer.blobs[0].data[:, 3] + 2)
    for case in (sparse, dense):
        for _ in range(2):  # the gradients of the weights add up
            case.backward(np.arange(6.0).reshape(2, 3))
    for one, other in zip(sparse.layer.blobs, dense.layer.blobs, strict=True):
        np.testing.assert_array_equal(one.diff, other.diff)
    sparse.check_gradient()


@given(st.lists(st.lists(st.sampled_from([0.0, 0.0, 0.0, 2.5, -1.0]), min_size=5, max_size=5), min_size=1, max_size=4))
def test_any_rows_of_mostly_zeros_give_the_sum_of_the_weights_that_they_name(rows: list[list[float]]) -> None:
    case = LayerCase(text("SparseInnerProduct"), np.array(rows))
    weight, bias = (blob.data for blob in case.layer.blobs)
    wanted = [bias + sum(value * weight[:, k] for k, value in enumerate(row) if value) for row in rows]
    np.testing.assert_allclose(case.forward()[0], wanted, atol=1e-12)


def test_error_names_the_type() -> None:
    with pytest.raises(LayerError, match='SparseInnerProduct layer "layer": num_output must be > 0, got 0'):
        LayerCase(text("SparseInnerProduct", ""), np.zeros((2, 5)))
