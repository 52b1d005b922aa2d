"""Chains of layers on the GPU: one launch for what follows a convolution, with the bits of the layers' own launches."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from chains import (
    BIASED,
    CHAINS,
    ONE_BY_ONE,
    RENAMED,
    TRAINED,
    assert_same,
    conv,
    net_of,
    on,
    ran_together,
    watched,
)

import minicaffe
from minicaffe.cuda import cudnn, graph
from minicaffe.cuda.device import current
from minicaffe.mode import TRAIN
from minicaffe.net import Net
from minicaffe.tracing.tracer import Tracer

pytestmark = pytest.mark.gpu

SHAPE = (2, 6, 7, 5)


def block(name: str, bottom: str, relu: str = "") -> str:
    """A convolution of 6 outputs, BatchNorm and Scale."""
    return conv(name, bottom, 6, "bias_term: false") + on("BatchNorm", name) + on("Scale", name, BIASED) + relu


RESNET = (
    block("a", "data", on("ReLU", "a"))
    + block("b", "a", on("ReLU", "b"))
    + block("c", "b")
    + 'layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "c" top: "sum" }'
    + on("ReLU", "sum")
)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


def launches(net: Net, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many kernels a forward sends."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    net.forward()  # once before, which allocates
    with importlib.import_module("benchmarks.launches").counted_launches(current()) as sent:
        net.forward_from_to(0, len(net.layers) - 1)
    return len(sent)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_has_the_bits_of_its_layers(case: str, dtype: type) -> None:
    text, chains = CHAINS[case]
    net, other = net_of(text, dtype=dtype), watched(net_of(text, dtype=dtype))
    for height in (7, 9):
        for one in (net, other):
            one.blobs["data"].reshape(2, 6, height, 5)
            one.blobs["data"].data[...] = np.random.default_rng(height).standard_normal((2, 6, height, 5))
            one.forward()
        assert ran_together(net) == chains
        assert ran_together(other) == []
        assert_same(net, other, 0)


@pytest.mark.parametrize("case", ONE_BY_ONE)
def test_what_is_no_chain_runs_one_by_one(case: str) -> None:
    net = net_of(ONE_BY_ONE[case])
    net.forward()
    assert ran_together(net) == []


@pytest.mark.parametrize(
    "text",
    [
        conv() + on("Bias", "conv", RENAMED) + on("Scale", "conv", BIASED),
        conv() + on("BatchNorm", "conv") + on("BatchNorm", "conv").replace("batchnorm", "again"),
        conv() + on("BatchNorm", "conv", "batch_norm_param { scale_bias: false }") + on("ReLU", "conv"),
    ],
    ids=["another order", "twice", "NVIDIA's statistics"],
)
def test_what_one_launch_cannot_do_runs_one_by_one(text: str) -> None:
    net, other = net_of(text), watched(net_of(text))
    net.forward()
    other.forward()
    assert ran_together(net) == []
    assert_same(net, other, 0)
    minicaffe.set_mode_cpu()
    net.forward()
    assert ran_together(net)


def test_special_values_pass_through_a_chain_as_through_its_layers() -> None:
    text = on("Scale", "y", BIASED, "data") + on("ReLU", "y", "relu_param { negative_slope: 0.25 }")
    net, other = net_of(text), watched(net_of(text))
    for one in (net, other):
        one.blobs["data"].data[...] = np.resize(np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -3e38]), SHAPE)
        one.forward()
    assert ran_together(net) == [(1, 2)]
    mine, wanted = net.blobs["y"].data, other.blobs["y"].data
    np.testing.assert_array_equal(mine, wanted)
    np.testing.assert_array_equal(np.signbit(mine), np.signbit(wanted))


def test_a_resnet_block_has_fewer_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in (cudnn, graph):  # what cuDNN launches is not counted, what a graph does is one
        monkeypatch.setattr(way._state, "allowed", False)
    together, one_by_one = launches(net_of(RESNET), monkeypatch), launches(watched(net_of(RESNET)), monkeypatch)
    # of each convolution: 2 for BatchNorm, Scale, ReLU where there is one -> 1; Eltwise and ReLU -> 1
    assert one_by_one - together == 3 + 3 + 2 + 1


def test_weights_count_as_they_are_at_each_forward() -> None:
    net, other = net_of(RESNET), watched(net_of(RESNET))
    net.forward()
    for one in (net, other):
        for blobs in one.params.values():
            for blob in blobs:
                blob.data[...] *= 1.5
        one.forward()
    assert_same(net, other, 0)


def test_a_trace_sees_every_layer() -> None:
    net = net_of(RESNET)
    with Tracer(net) as tracer:
        net.forward()
    assert [step.layer for step in tracer.trace.steps if step.kind == "forward"] == list(range(len(net.layers)))
    assert ran_together(net) == []


def test_only_outputs_are_kept() -> None:
    net, other = net_of(RESNET, keep="outputs"), watched(net_of(RESNET))
    wanted = other.forward()["sum"]
    np.testing.assert_array_equal(net.forward()["sum"], wanted)
    assert len(ran_together(net)) == 4


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("case", ["conv, bn, scale, relu", "sum", "bn, scale, relu on a blob of their own"])
def test_gradients_after_a_chain(case: str, late: bool) -> None:
    nets = [net_of(CHAINS[case][0]), watched(net_of(CHAINS[case][0]))]
    for net in nets:
        if not late or net is nets[1]:  # layer by layer, a forward without it keeps nothing for a backward
            net.force_backward()
        net.forward()
        net.force_backward()
        net.clear_param_diffs()
        for name in net.outputs:
            net.blobs[name].diff[...] = np.random.default_rng(2).standard_normal(net.blobs[name].shape)
        net.backward()
    for mine, wanted in zip(nets[0].learnable_params, nets[1].learnable_params, strict=True):
        np.testing.assert_array_equal(mine.diff, wanted.diff)
    np.testing.assert_array_equal(*(net.blobs["data"].diff for net in nets))


@pytest.mark.parametrize("backward_on_cpu", [False, True])
@pytest.mark.parametrize("case", ["conv, bn, scale, relu", "bn, scale, relu", "sum, relu"])
def test_frozen_layers_train_in_a_chain(case: str, backward_on_cpu: bool) -> None:
    nets = [net_of(TRAINED[case], TRAIN), watched(net_of(TRAINED[case], TRAIN))]
    for net in nets:
        minicaffe.set_mode_gpu()
        net.forward()
        assert bool(ran_together(net)) == (net is nets[0])
        if backward_on_cpu:
            minicaffe.set_mode_cpu()
        net.clear_param_diffs()
        for name in net.outputs:
            net.blobs[name].diff[...] = 1
        net.backward()
    for mine, wanted in zip(nets[0].learnable_params, nets[1].learnable_params, strict=True):
        np.testing.assert_allclose(mine.diff, wanted.diff, rtol=0, atol=1e-5 * max(np.abs(wanted.diff).max(), 1e-3))
