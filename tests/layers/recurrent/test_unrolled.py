"""recurrent_param.debug_info: the lines of the net that Caffe unrolls an RNN or LSTM into."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import rng

both = pytest.mark.parametrize("kind", ["RNN", "LSTM"])
T, S, INPUTS, UNITS = 3, 2, 4, 5


def case(kind: str, *bottoms: np.ndarray, inside: str = "debug_info: true", name: str = "r", tops: int = 1) -> LayerCase:
    fillers = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 1 }'
    return LayerCase(
        f'name: "{name}" type: "{kind}" recurrent_param {{ num_output: {UNITS} {inside} {fillers} }}', *bottoms, tops=tops
    )


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@both
@pytest.mark.parametrize("static", [False, True])
def test_the_unrolled_net_computes_what_the_layer_does(kind: str, static: bool) -> None:
    cont = np.array([[1, 0], [1, 1], [0, 1]])
    this = case(kind, normal(T, S, INPUTS), cont, *[normal(S, 7)] * static)
    for _ in range(2):  # the second from the last states of the first, on top of its gradients
        (y,) = this.forward()
        net = this.layer._unrolled.net
        np.testing.assert_allclose(net.blobs["o" if kind == "RNN" else "h"].data, y, atol=1e-12)
        this.top[0].diff[...] = normal(T, S, UNITS)
        this.layer.backward_pass(this.top, [True, False, True][: 2 + static], this.bottom)
        for mine, blob in zip(net.learnable_params, this.layer.blobs, strict=True):
            np.testing.assert_allclose(mine.diff, blob.diff, atol=1e-12)
        np.testing.assert_allclose(net.blobs["x"].diff, this.bottom[0].diff, atol=1e-12)
        if static:
            np.testing.assert_allclose(net.blobs["x_static"].diff, this.bottom[2].diff, atol=1e-12)


def test_the_lines_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    """One step, one stream, one unit: h = tanh(0.5 * 2 + 0.25), y = tanh(0.5 h + 0.25), dy = 1."""
    fillers = "weight_filler { value: 0.5 } bias_filler { value: 0.25 }"
    inside = f"recurrent_param {{ num_output: 1 debug_info: true {fillers} }}"
    this = LayerCase(f'name: "r" type: "RNN" {inside}', np.full((1, 1, 1), 2.0), np.ones((1, 1)))
    caplog.set_level(logging.INFO, "minicaffe.solver")
    this.forward()
    h = np.tanh(1.25)
    y = np.tanh(0.5 * h + 0.25)
    assert lines(caplog) == [
        "    [Forward] Layer r_, top blob x data: 2",
        "    [Forward] Layer r_, top blob cont data: 1",
        "    [Forward] Layer r_, top blob h_0 data: 0",
        "    [Forward] Layer r_cont_slice, top blob cont_1 data: 1",
        "    [Forward] Layer r_x_transform, top blob W_xh_x data: 1.25",
        "    [Forward] Layer r_x_transform, param blob W_xh data: 0.5",
        "    [Forward] Layer r_x_transform, param blob b_h data: 0.25",
        "    [Forward] Layer r_W_xh_x_slice, top blob W_xh_x_1 data: 1.25",
        "    [Forward] Layer r_h_conted_0, top blob h_conted_0 data: 0",
        "    [Forward] Layer r_W_hh_h_0, top blob W_hh_h_0 data: 0",
        "    [Forward] Layer r_W_hh_h_0, param blob W_hh data: 0.5",
        "    [Forward] Layer r_h_input_sum_1, top blob h_neuron_input_1 data: 1.25",
        f"    [Forward] Layer r_h_neuron_1, top blob h_1 data: {h:g}",
        f"    [Forward] Layer r_W_ho_h_1, top blob W_ho_h_1 data: {0.5 * h + 0.25:g}",
        "    [Forward] Layer r_W_ho_h_1, param blob W_ho data: 0.5",
        "    [Forward] Layer r_W_ho_h_1, param blob b_o data: 0.25",
        f"    [Forward] Layer r_o_neuron_1, top blob o_1 data: {y:g}",
        f"    [Forward] Layer r_o_concat, top blob o data: {y:g}",
    ]
    this.top[0].diff[...] = 1
    this.layer.backward_pass(this.top, [True, False], this.bottom)
    do, found = 1 - y * y, lines(caplog)
    dh = 0.5 * do * (1 - h * h)
    assert found[:5] == [
        "    [Backward] Layer r_o_concat, bottom blob o_1 diff: 1",
        f"    [Backward] Layer r_o_neuron_1, bottom blob W_ho_h_1 diff: {do:g}",
        f"    [Backward] Layer r_W_ho_h_1, bottom blob h_1 diff: {0.5 * do:g}",
        f"    [Backward] Layer r_W_ho_h_1, param blob 0 diff: {do * h:g}",
        f"    [Backward] Layer r_W_ho_h_1, param blob 1 diff: {do:g}",
    ]
    assert found[-1] == f"    [Backward] Layer r_x_transform, param blob 1 diff: {dh:g}"
    assert found[-3] == f"    [Backward] Layer r_x_transform, bottom blob x diff: {0.5 * dh:g}"


def test_the_layers_of_an_lstm_have_caffes_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "minicaffe.solver")
    this = case("LSTM", normal(2, S, INPUTS), np.ones((2, S)), name="")
    this.forward()
    names = dict.fromkeys(line.split(",")[0].split("Layer ")[1] for line in lines(caplog))
    assert [name for name in names if "split" not in name] == [
        "", "cont_slice", "x_transform", "W_xc_x_slice", "h_conted_0", "transform_1", "gate_input_1", "unit_1",
        "h_conted_1", "transform_2", "gate_input_2", "unit_2", "h_concat",
    ]  # fmt: skip
    assert "cont_1_cont_slice_0_split" in names and "h_1_unit_1_1_split" in names


@both
def test_without_it_there_are_none(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "minicaffe.solver")
    this = case(kind, normal(T, S, INPUTS), np.ones((T, S)), inside="")
    this.forward()
    this.layer.backward_pass(this.top, [True, False], this.bottom)
    assert not lines(caplog)


@both
def test_exposed_states_another_shape_and_no_random_draws(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "minicaffe.solver")
    states = [normal(1, S, UNITS)] * (2 if kind == "LSTM" else 1)
    this = case(
        kind,
        normal(T, S, INPUTS),
        np.ones((T, S)),
        *states,
        inside="debug_info: true expose_hidden: true",
        tops=1 + len(states),
    )
    before = rng.generator().bit_generator.state
    this.forward()
    assert rng.generator().bit_generator.state == before
    assert f"    [Forward] Layer r_, top blob h_0 data: {np.abs(states[0]).mean():g}" in lines(caplog)
    this.bottom[0].reshape(1, S, INPUTS)
    this.bottom[1].reshape(1, S)
    y = this.forward()[0]
    np.testing.assert_allclose(this.layer._unrolled.net.blobs["o" if kind == "RNN" else "h"].data, y, atol=1e-12)
