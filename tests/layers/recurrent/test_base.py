"""What RNN and LSTM share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import SGDSolver
from minicaffe.errors import LayerError

KINDS = {"RNN": 1, "LSTM": 2}
both = pytest.mark.parametrize("kind", list(KINDS))
T, S, INPUTS, UNITS = 4, 2, 3, 5


def text(kind: str, inside: str = "num_output: 5") -> str:
    fillers = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "{kind}" recurrent_param {{ {inside} {fillers} }}'


def exposed(kind: str) -> str:
    return text(kind, "num_output: 5 expose_hidden: true")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def first_states(kind: str) -> list[np.ndarray]:
    return [normal(1, S, UNITS) + i for i in range(KINDS[kind])]


def same_weights(case: LayerCase, other: LayerCase) -> None:
    for blob, of_other in zip(case.layer.blobs, other.layer.blobs, strict=True):
        blob.data[...] = of_other.data


@both
def test_blobs_are_those_of_caffe(kind: str) -> None:
    wide = {"RNN": UNITS, "LSTM": 4 * UNITS}[kind]
    output = [(UNITS, UNITS), (UNITS,)] if kind == "RNN" else []
    case = LayerCase(text(kind), normal(T, S, 1, INPUTS), np.ones((T, S)))
    assert [b.shape for b in case.layer.blobs] == [(wide, INPUTS), (wide,), (wide, UNITS), *output]
    case = LayerCase(text(kind), normal(T, S, INPUTS), np.ones((T, S)), normal(S, 7, 2))
    assert [b.shape for b in case.layer.blobs] == [(wide, INPUTS), (wide,), (wide, 14), (wide, UNITS), *output]


@both
def test_the_last_states_are_the_first_of_the_next_batch(kind: str) -> None:
    x = normal(2 * T, S, INPUTS)
    whole = LayerCase(text(kind), x, np.ones((2 * T, S)))
    halves = LayerCase(text(kind), x[:T], np.ones((T, S)))
    same_weights(halves, whole)
    first = halves.forward()[0]
    halves.bottom[0].data[...] = x[T:]
    np.testing.assert_allclose([*first, *halves.forward()[0]], whole.forward()[0], atol=1e-12)
    halves.bottom[1].data[0] = 0
    anew = LayerCase(text(kind), x[T:], np.ones((T, S)))
    same_weights(anew, whole)
    np.testing.assert_allclose(halves.forward()[0], anew.forward()[0], atol=1e-12)


@both
def test_exposed_states_go_on_where_they_are_given(kind: str) -> None:
    x, states = normal(2 * T, S, INPUTS), first_states(kind)
    tops = 1 + KINDS[kind]
    whole = LayerCase(exposed(kind), x, np.ones((2 * T, S)), *states, tops=tops)
    halves = LayerCase(exposed(kind), x[:T], np.ones((T, S)), *states, tops=tops)
    same_weights(halves, whole)
    first, *last = halves.forward()
    halves.bottom[0].data[...] = x[T:]
    for blob, state in zip(halves.bottom[2:], last, strict=True):
        blob.data[...] = state
    second, *last = halves.forward()
    y, *whole_last = whole.forward()
    np.testing.assert_allclose([*first, *second], y, atol=1e-12)
    np.testing.assert_allclose(last, whole_last, atol=1e-12)
    if kind == "LSTM":
        np.testing.assert_array_equal(last[0][0], second[-1])


@both
def test_gradient_with_exposed_states(kind: str) -> None:
    """No gradient passes through the states, given or exposed."""
    case = LayerCase(exposed(kind), normal(T, S, INPUTS), np.ones((T, S)), *first_states(kind), tops=1 + KINDS[kind])
    case.forward()
    dy = normal(T, S, UNITS)
    dx, _, *dstates = case.backward(dy, *[np.zeros((1, S, UNITS))] * KINDS[kind])
    assert not np.any(dstates)
    np.testing.assert_array_equal(case.backward(dy, *[np.ones((1, S, UNITS))] * KINDS[kind])[0], dx)


@both
def test_weight_diffs_accumulate_and_only_what_is_wanted_is_computed(kind: str) -> None:
    x, cont, static = normal(T, S, INPUTS), np.ones((T, S)), normal(S, 7)
    case = LayerCase(text(kind), x, cont, static)
    case.forward()
    dy = normal(T, S, UNITS)
    case.bottom[0].diff[...] = case.bottom[2].diff[...] = 7
    dx, _, dstatic = case.backward(dy, propagate_down=[False, False, False])
    assert (dx == 7).all()
    assert (dstatic == 7).all()
    once = [blob.diff.copy() for blob in case.layer.blobs]
    case.backward(dy)
    for blob, diff in zip(case.layer.blobs, once, strict=True):
        np.testing.assert_allclose(blob.diff, 2 * diff)
    case.layer.param_propagate_down = [False] * len(once)
    case.backward(dy)
    for blob, diff in zip(case.layer.blobs, once, strict=True):
        np.testing.assert_allclose(blob.diff, 2 * diff)
    for blob, given in zip(case.bottom, (x, cont, static), strict=True):
        np.testing.assert_array_equal(blob.data, given)


@both
def test_more_steps_other_streams_and_none(kind: str) -> None:
    case = LayerCase(text(kind), normal(T, S, INPUTS), np.ones((T, S)))
    for steps, streams in ((7, 3), (1, 1), (2, 0), (0, 2)):
        case.bottom[0].reshape(steps, streams, INPUTS)
        case.bottom[1].reshape(steps, streams)
        assert case.forward()[0].shape == (steps, streams, UNITS)
        assert case.backward(np.zeros((steps, streams, UNITS)))[0].shape == (steps, streams, INPUTS)


@both
def test_the_states_are_part_of_an_exact_resume(kind: str) -> None:
    x = normal(T, S, INPUTS)
    case, resumed = (LayerCase(text(kind), x, np.ones((T, S)), dtype=np.float32) for _ in range(2))
    same_weights(resumed, case)
    case.forward()
    resumed.layer.restore_training_state(json.loads(json.dumps(case.layer.training_state())))
    np.testing.assert_array_equal(resumed.forward()[0], case.forward()[0])


@both
@pytest.mark.parametrize(
    ("inside", "shapes", "tops", "message"),
    [
        ("", ((4, 2, 3), (4, 2)), 1, "num_output must be > 0, got 0"),
        ("num_output: 5", ((4, 2, 3), (4, 2)), 2, "with expose_hidden false takes 1 top, got 2"),
        ("num_output: 5", ((4, 2, 3), (4, 2), (2, 5), (2, 5)), 1, "false takes 2 bottoms, or 3 with a static input, got 4"),
        ("num_output: 5", ((4,), (4,)), 1, r"the first bottom must have shape \(steps, streams, ...\), it has \(4,\)"),
        ("num_output: 5", ((4, 2, 3), (2, 4)), 1, r"cont, the second bottom, must have shape \(4, 2\), .* it has \(2, 4\)"),
        ("num_output: 5", ((4, 2, 3), (4, 2), (3, 5)), 1, r"the static input must have 2 streams first, its shape is \(3, 5\)"),
    ],
)
def test_errors(kind: str, inside: str, shapes: tuple[tuple[int, ...], ...], tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=f'{kind} layer "layer": .*{message}'):
        LayerCase(text(kind, inside), *map(np.ones, shapes), tops=tops)


@both
def test_errors_of_exposed_states(kind: str) -> None:
    states = KINDS[kind]
    x, cont = normal(T, S, INPUTS), np.ones((T, S))
    with pytest.raises(LayerError, match=rf"true takes {2 + states} bottoms, or {3 + states} with a static input, got 2"):
        LayerCase(exposed(kind), x, cont, tops=1 + states)
    with pytest.raises(LayerError, match=rf"true takes {1 + states} tops, got 1"):
        LayerCase(exposed(kind), x, cont, *first_states(kind))
    wrong = [np.ones((1, S, UNITS + 1))] * states
    with pytest.raises(LayerError, match=r"bottom 2, a first state, must have shape \(1, 2, 5\), it has \(1, 2, 6\)"):
        LayerCase(exposed(kind), x, cont, *wrong, tops=1 + states)


@both
def test_another_size_after_setup(kind: str) -> None:
    case = LayerCase(text(kind), normal(T, S, INPUTS), np.ones((T, S)), normal(S, 7))
    case.bottom[2].reshape(S, 8)
    with pytest.raises(LayerError, match="its weights take 7 inputs from bottom 2, it now gives 8"):
        case.forward()
    case.bottom[0].reshape(T, S, INPUTS + 1)
    with pytest.raises(LayerError, match="its weights take 3 inputs from bottom 0, it now gives 4"):
        case.forward()


@both
def test_a_training_resumes_bit_for_bit(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(
        f"""
        layer {{ name: "data" type: "DummyData" top: "x" top: "cont" top: "target" dummy_data_param {{
          shape {{ dim: 4 dim: 2 dim: 3 }} shape {{ dim: 4 dim: 2 }} shape {{ dim: 4 dim: 2 dim: 5 }}
          data_filler {{ type: "gaussian" }} data_filler {{ value: 1 }} data_filler {{ type: "gaussian" }} }} }}
        layer {{ name: "layer" bottom: "x" bottom: "cont" top: "y" {text(kind)} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "target" top: "loss" }}
        """
    )
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.05 lr_policy: "fixed" random_seed: 3 snapshot: 2 snapshot_prefix: "at"'
    )
    whole, resumed = SGDSolver("solver.prototxt"), SGDSolver("solver.prototxt")
    whole.step(4)
    resumed.restore("at_iter_2.solverstate")
    resumed.step(2)
    for ours, theirs in zip(resumed.net.params["layer"], whole.net.params["layer"], strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)
