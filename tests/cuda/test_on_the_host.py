"""Types without kernels, in GPU mode between layers that have some: as in CPU mode, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import minicaffe
from minicaffe import Net
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.gpu

FILLER = 'weight_filler { type: "gaussian" std: 0.3 }'
RECURRENT_KINDS = {"LSTM", "RNN"}
WIDE = "dim: 4 dim: 6"
RECURRENT = 'bottom: "x" bottom: "label" recurrent_param {{ num_output: 5 {} }} top: "top"'
CASES = {
    "ContrastiveLoss": (WIDE, "", 'bottom: "x" bottom: "x2" bottom: "label" top: "top"'),
    "HingeLoss": (WIDE, "", 'bottom: "x" bottom: "label" top: "top"'),
    "MultinomialLogisticLoss": (
        WIDE,
        'layer { name: "s" type: "Softmax" bottom: "x" top: "s" }',
        'bottom: "s" bottom: "label" top: "top"',
    ),
    "LSTM": ("dim: 4 dim: 1 dim: 6", "", RECURRENT.format(FILLER)),
    "RNN": ("dim: 4 dim: 1 dim: 6", "", RECURRENT.format(FILLER)),
    "SPP": ("dim: 4 dim: 2 dim: 5 dim: 7", "", 'bottom: "x" top: "top" spp_param { pyramid_height: 2 }'),
    "Downsample": ("dim: 4 dim: 2 dim: 6 dim: 8", "", 'bottom: "x" top: "top" downsample_param { top_height: 3 top_width: 4 }'),
}


def results(kind: str, gpu: bool) -> dict[str, Any]:
    """The blobs of a net around a layer of this type, and the diffs of its inputs and weights."""
    (minicaffe.set_mode_gpu if gpu else minicaffe.set_mode_cpu)()
    shape, before, inside = CASES[kind]
    last = (
        ""
        if kind.endswith("Loss")
        else 'layer { name: "t" type: "Power" bottom: "top" top: "t" power_param { scale: 2 } loss_weight: 1 }'
    )
    text = f"""
input: "given" input_shape {{ {shape} }}
input: "label" input_shape {{ {"dim: 4 dim: 1" if kind in RECURRENT_KINDS else "dim: 4"} }}
force_backward: true
layer {{ name: "x" type: "Power" bottom: "given" top: "x" power_param {{ scale: 1.5 }} }}
layer {{ name: "x2" type: "Sigmoid" bottom: "given" top: "x2" }}
{before}
layer {{ name: "top" type: "{kind}" {inside} }}
{last}
"""
    net = Net(parse_net(text))
    draw = np.random.default_rng(5)
    for name in sorted(net.params):
        for blob in net.params[name]:
            blob.data[...] = draw.normal(size=blob.shape)
    net.blobs["given"].data[...] = draw.normal(size=net.blobs["given"].shape)
    net.blobs["label"].data[...] = np.array([0, 1, 1, 0]).reshape(net.blobs["label"].shape)
    for _ in range(2):
        net.forward()
        net.clear_param_diffs()
        net.backward()
    found = {name: blob.data.copy() for name, blob in net.blobs.items()}
    found |= {f"{name} {i}": blob.diff.copy() for name, blobs in net.params.items() for i, blob in enumerate(blobs)}
    return found | {"dx": net.blobs["given"].diff.copy()}


@pytest.fixture(autouse=True)
def mode() -> Iterator[None]:
    yield
    minicaffe.set_mode_cpu()


@pytest.mark.parametrize("kind", CASES)
def test_as_in_cpu_mode(kind: str) -> None:
    expected, got = results(kind, gpu=False), results(kind, gpu=True)
    assert np.abs(expected["dx"]).max() > 0 or kind == "Downsample"
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
