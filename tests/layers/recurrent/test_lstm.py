"""LSTM and Lstm. What LSTM shares with RNN: recurrent/test_base.py."""

from __future__ import annotations

import numpy as np
import pytest
from golden import FORKS, cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from recordings import needs

from minicaffe.errors import LayerError
from minicaffe.layers.recurrent.lstm import Lstm, LstmSteps


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "LSTM" recurrent_param {{ {inside} {fillers} }}'


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """One unit, two steps, no weights but the biases: gates of 1/2, and tanh(ln 3) = 4/5 goes in at every step."""
    case = LayerCase(text("num_output: 1"), np.zeros((2, 2, 3)), [[0.0, 0.0], [1.0, 0.0]], dtype=dtype)
    for blob in case.layer.blobs:
        blob.data[...] = 0
    case.layer.blobs[1].data[3] = np.log(3)
    (y,) = case.forward()
    np.testing.assert_allclose(y[..., 0], np.tanh([[0.4, 0.4], [0.6, 0.4]]) / 2, rtol=1e-6)
    assert y.dtype == dtype


@pytest.mark.parametrize("case", cases("LSTM"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 8


@given(st.integers(0, 1000), st.integers(1, 5))
def test_agrees_with_the_formula_step_by_step(seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    x, cont = random.normal(size=(steps, 2, 3)), random.integers(0, 2, (steps, 2)).astype(float)
    cont[0] = 0
    case = LayerCase(text("num_output: 4"), x, cont)
    weight_x, bias, weight_h = (blob.data for blob in case.layer.blobs)
    (y,) = case.forward()
    h = c = np.zeros((2, 4))
    for t in range(steps):
        begins = cont[t, :, None]
        i, f, o, g = np.split(x[t] @ weight_x.T + bias + (begins * h) @ weight_h.T, 4, axis=1)
        c = begins * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(y[t], h, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 4])
def test_gradient(steps: int) -> None:
    random = np.random.default_rng(steps)
    cont = np.ones((steps, 2))
    cont[0], cont[steps // 2, 1] = 0, 0
    x, static = random.normal(size=(steps, 2, 3)), random.normal(size=(2, 5))
    LayerCase(text("num_output: 4"), x, cont).check_gradient()
    LayerCase(text("num_output: 4"), x, cont, static).check_gradient()


def lstm(inside: str = "") -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "Lstm" lstm_param {{ num_output: 4 {inside} {fillers} }}'


OWN = "own_states: true"
only_first = pytest.mark.filterwarnings("ignore:.*go on from the first one's h")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lstm_of_forks_by_hand(dtype: type) -> None:
    """As test_by_hand: gates of 1/2, and 4/5 goes in at every step."""
    case = LayerCase('type: "Lstm" lstm_param { num_output: 1 batch_size: 2 own_states: true }', np.zeros((6, 3)), dtype=dtype)
    case.layer.blobs[2].data[3] = np.log(3)
    (y,) = case.forward()
    np.testing.assert_allclose(y[:, 0], np.tanh([0.4, 0.4, 0.6, 0.6, 0.7, 0.7]) / 2, rtol=1e-6)
    assert y.dtype == dtype


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 3))
def test_streams_with_states_of_their_own_do_not_meet(seed: int, steps: int, streams: int) -> None:
    x = np.random.default_rng(seed).normal(size=(steps, streams, 3))
    case = LayerCase(lstm(OWN), x)
    (y,) = case.forward()
    for s in range(streams):
        alone = LayerCase(lstm(OWN), x[:, s])
        for blob, other in zip(alone.layer.blobs, case.layer.blobs, strict=True):
            blob.data[...] = other.data
        np.testing.assert_allclose(alone.forward()[0], y[:, s], atol=1e-12)


@only_first
@given(st.integers(0, 1000), st.integers(1, 4))
def test_streams_that_are_equal_need_no_state_of_their_own(seed: int, steps: int) -> None:
    x = np.repeat(np.random.default_rng(seed).normal(size=(steps, 1, 3)), 2, axis=1)
    first, own = LayerCase(lstm(), x), LayerCase(lstm(OWN), x)
    for blob, other in zip(own.layer.blobs, first.layer.blobs, strict=True):
        blob.data[...] = other.data
    np.testing.assert_allclose(first.forward()[0], own.forward()[0], atol=1e-12)


def test_streams_without_own_states_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="2 streams go on from the first one's h"):
        LayerCase(lstm(), np.zeros((3, 2, 5)))


def test_the_lstm_of_forks_is_bvlcs_with_other_bottoms() -> None:
    x = np.random.default_rng(4).normal(size=(5, 2, 3))
    cont = np.ones((5, 2))
    cont[0] = 0
    forks, bvlcs = LayerCase(lstm(OWN), x), LayerCase(text("num_output: 4"), x, cont)
    for mine, other in zip(forks.layer.blobs, (bvlcs.layer.blobs[i] for i in (0, 2, 1)), strict=True):
        mine.data[...] = other.data
    np.testing.assert_array_equal(forks.forward()[0], bvlcs.forward()[0])


@only_first
@pytest.mark.parametrize("inside", ["", OWN])
def test_gradient_of_the_lstm_of_forks(inside: str) -> None:
    random = np.random.default_rng(3)
    LayerCase(lstm(inside), random.normal(size=(5, 2, 3))).check_gradient()
    LayerCase(lstm(f"batch_size: 2 {inside}"), random.normal(size=(6, 3))).check_gradient()
    # clip 0 at first: no state comes from the forward before
    LayerCase(lstm(inside), random.normal(size=(5, 2, 3)), [0.0, 0, 1, 0, 2, 1]).check_gradient()


def test_clip_lets_states_pass_from_forward_to_forward() -> None:
    x = np.random.default_rng(5).normal(size=(6, 3))
    whole, parts = LayerCase(lstm(), x, [0.0, 1, 1, 1, 1, 1]), LayerCase(lstm(), x[:3], [0.0, 1, 1])
    for blob, other in zip(parts.layer.blobs, whole.layer.blobs, strict=True):
        blob.data[...] = other.data
    (y,) = whole.forward()
    np.testing.assert_allclose(parts.forward()[0], y[:3], atol=1e-12)
    state = parts.layer.training_state()
    for _ in range(2):  # the second time after a resumed training
        parts.layer.restore_training_state(state)
        parts.bottom[0].data[...] = x[3:]
        parts.bottom[1].data[...] = 1
        np.testing.assert_allclose(parts.forward()[0], y[3:], atol=1e-12)


@needs(FORKS)
@only_first
def test_clipped_gradients_are_the_forks() -> None:
    """All but weight_h's, to which the fork's backward adds a product that forward does not have."""
    stored = np.load(FORKS / "Lstm@jlstm/clipping_threshold.npz")
    case = LayerCase(lstm("batch_size: 2 clipping_threshold: 0.05"), stored["bottom.b0"], dtype=np.float32)
    for i, blob in enumerate(case.layer.blobs):
        blob.data[...] = stored[f"param.{i}"]
    case.forward()
    (dx,) = case.backward(stored["top_diff.t0"])
    np.testing.assert_allclose(dx, stored["fork_bottom_diff.b0"], rtol=1e-4, atol=1e-5)
    for i in (0, 2):
        np.testing.assert_allclose(case.layer.blobs[i].diff, stored[f"fork_param_diff.{i}"], rtol=1e-4, atol=1e-5)


def test_no_gradient_passes_its_bound() -> None:
    random = np.random.default_rng(6)
    steps = LstmSteps(random.normal(size=(16, 4)), np.ones((3, 2)))
    zeros = np.zeros((2, 4))
    steps.forward(random.normal(size=(3, 2, 16)), [zeros, zeros], np.empty((3, 2, 4)))
    du = steps.backward(random.normal(size=(3, 2, 4)), bound=0.01)
    assert abs(du).max() == 0.01


@only_first
def test_stored_weights_tell_the_form_of_x() -> None:
    case = LayerCase(lstm(), np.ones((6, 5)))
    assert isinstance(case.layer, Lstm)
    assert case.forward()[0].shape == (6, 4)
    assert not case.layer.adopt_layout([(16, 5), (16, 4), (16,)])
    assert not case.layer.adopt_layout([(16, 3), (16, 4), (16,)])  # neither form's: the copy reports it
    assert case.layer.adopt_layout([(16, 1), (16, 4), (16,)])
    assert [blob.shape for blob in case.layer.blobs] == [(16, 1), (16, 4), (16,)]
    assert case.forward()[0].shape == (6, 5, 4)
    case = LayerCase(lstm("batch_size: 3"), np.ones((6, 5, 2)))  # 5 are not 3 streams
    assert case.forward()[0].shape == (6, 4)


@pytest.mark.parametrize(
    ("inside", "shapes", "message"),
    [
        ("num_output: 0", [(4, 2, 3)], "num_output must be > 0, got 0"),
        ("num_output: 4 batch_size: 0", [(4, 2, 3)], "batch_size must be > 0, got 0"),
        ("num_output: 4 batch_size: 3", [(4, 3)], "x must have a multiple of batch_size, 3, rows, got 4"),
        ("num_output: 4", [()], "x must have an axis of steps"),
        ("num_output: 4", [(4, 3), (3,)], r"clip must have shape \(4,\) or longer, it has \(3,\)"),
        ("num_output: 4", [(4, 3), (2, 2)], r"clip must have shape \(4,\) or longer, it has \(2, 2\)"),
    ],
)
def test_errors_of_the_lstm_of_forks(inside: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match='Lstm layer "layer": ' + message):
        LayerCase(f'type: "Lstm" lstm_param {{ {inside} }}', *(np.zeros(shape) for shape in shapes))


@pytest.mark.parametrize(("shape", "message"), [((4, 2, 5), "its weights take 3 inputs"), ((4,), "x must have 2 axes or more")])
def test_errors_of_a_second_reshape(shape: tuple[int, ...], message: str) -> None:
    case = LayerCase(lstm(OWN), np.zeros((4, 2, 3)))
    case.bottom[0].reshape(7, 5, 3)
    assert case.forward()[0].shape == (7, 5, 4)
    case.bottom[0].reshape(*shape)
    with pytest.raises(LayerError, match=message):
        case.forward()


@pytest.mark.parametrize(
    ("fork", "inside", "shape", "inputs", "told"),
    [
        ("ctpn", "", (4, 3), 1, "CTPN: fork ctpn"),
        ("jlstm", "", (4, 3, 2), 6, "caffe-lstm: fork jlstm"),
        ("caffeocr", "", (4, 3, 2), 2, "CTPN: fork caffeocr"),
        ("mkfrcnn", "batch_size: 2", (4, 3, 2), 2, "CTPN: fork mkfrcnn"),
        ("ctpn", "batch_size: 2", (4, 3), 1, "CTPN: fork ctpn"),
        ("", "batch_size: 2", (4, 3, 2), 6, "caffe-lstm: 3 axes, batch_size 2"),
        ("", "", (4, 3), 3, "caffe-lstm: 2 axes"),
        ("", "", (4, 3, 2), 2, "CTPN: 3 axes"),
    ],
)
def test_the_fork_tells_the_form_before_weights_do(
    fork: str, inside: str, shape: tuple[int, ...], inputs: int, told: str
) -> None:
    case = LayerCase(f'type: "Lstm" lstm_param {{ num_output: 1 {inside} own_states: true }}', np.zeros(shape), fork=fork)
    assert case.layer.blobs[0].shape == (4, inputs)
    assert str(case.layer.choice) == f"Lstm of {told}"
    other = 3 if inputs == 1 else 1
    if len(shape) == 2 and case.layer.adopt_layout([(4, other)]):
        assert str(case.layer.choice).endswith(f": {other} inputs in the stored weights")
