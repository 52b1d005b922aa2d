"""MemoryData."""

from __future__ import annotations

import numpy as np
import pytest
from batches import batches, net_of, run_batches
from golden import cases
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import Error, LayerError


def text(batch: int = 2, width: int = 5) -> str:
    return (
        'layer { name: "in" type: "MemoryData" top: "data" top: "label"\n'
        f"memory_data_param {{ batch_size: {batch} channels: 3 height: 4 width: {width} }} }}"
    )


@pytest.mark.parametrize("case", cases("MemoryData"))
def test_golden(case: str) -> None:
    assert run_batches(case, 0, data="input.data", labels="input.labels")


@given(st.integers(1, 3), st.integers(1, 4))
def test_batches_go_around(batch: int, parts: int) -> None:
    rows = batch * parts
    x = np.random.default_rng(rows).standard_normal((rows, 3, 4, 5)).astype(np.float32)
    net = net_of(text(batch))
    net.set_input_arrays(x, np.arange(rows, dtype=np.float32))
    taken = batches(net, parts + 1)
    np.testing.assert_array_equal(np.concatenate([data for data, _ in taken])[:rows], x)
    np.testing.assert_array_equal(taken[-1][0], x[:batch])
    assert taken[0][1].shape == (batch, 1, 1, 1)
    np.testing.assert_array_equal(np.concatenate([y for _, y in taken]).ravel(), np.arange(rows + batch) % rows)


def test_new_arrays_start_anew_and_a_state_resumes() -> None:
    x = np.arange(6 * 60.0).reshape(6, 3, 4, 5)
    net, other = net_of(text()), net_of(text())
    for one in (net, other):
        one.set_input_arrays(x, np.arange(6.0))
    net.forward()
    other.layers[0].restore_training_state(net.layers[0].training_state())
    assert batches(net, 1)[0][1].ravel().tolist() == batches(other, 1)[0][1].ravel().tolist() == [2, 3]
    net.set_input_arrays(x[:2], np.array([8.0, 9]))
    assert batches(net, 2)[1][1].ravel().tolist() == [8, 9]


@pytest.mark.parametrize(
    ("x", "labels", "message"),
    [
        ((4, 3, 4, 6), (4,), r"the data has shape \(4, 3, 4, 6\), the layer takes \(rows, 3, 4, 5\)"),
        ((4, 3, 4, 5), (3,), r"the labels have shape \(3,\): give one for each of 4 rows"),
        ((4, 3, 4, 5), (4, 2), r"the labels have shape \(4, 2\)"),
        ((3, 3, 4, 5), (3,), "3 rows are no multiple of batch_size 2"),
        ((0, 3, 4, 5), (0,), "0 rows are no multiple of batch_size 2"),
    ],
)
def test_arrays_that_do_not_fit(x: tuple[int, ...], labels: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='MemoryData layer "in": ' + message):
        net_of(text()).layers[0].reset(np.zeros(x), np.zeros(labels))


def test_errors() -> None:
    with pytest.raises(LayerError, match="batch_size, channels, height and width must be > 0, got 0, 3, 4, 5"):
        net_of(text(0))
    with pytest.raises(LayerError, match="has no data: call set_input_arrays"):
        net_of(text()).forward()
    with pytest.raises(LayerError, match='"labels": an array of <U3, not of numbers'):
        net_of(text()).layers[0].reset(np.zeros((2, 3, 4, 5)), np.array(["one", "two"]))
    with pytest.raises(Error, match="MemoryData"):
        net_of('layer { name: "in" type: "Input" top: "x" }').set_input_arrays(np.zeros((2, 3)), np.zeros(2))
