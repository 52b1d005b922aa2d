"""Elementwise, joining and reducing layers on the GPU: what they move, and what they keep when the mode changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from layer_case import LayerCase

import minicaffe
from minicaffe import rng
from minicaffe.blob import MemoryState
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.net import Net

pytestmark = pytest.mark.gpu


class Kept(NamedTuple):
    """A layer, its bottoms' shapes, and whether it runs in place."""

    text: str
    shapes: list[tuple[int, ...]]
    in_place: bool = False
    tops: int = 1
    phase: Phase = TRAIN


MAP = (2, 3, 4, 5)
LAYERS = [
    Kept('type: "ArgMax" argmax_param { axis: 1 top_k: 2 }', [MAP]),
    Kept('type: "BatchNorm"', [MAP]),
    Kept('type: "BatchNorm"', [MAP], in_place=True),
    Kept('type: "BatchNorm"', [MAP], phase=TEST),
    Kept('type: "Bias" bias_param { filler { value: 2 } }', [MAP]),
    Kept('type: "Concat"', [MAP, (2, 6, 4, 5)]),
    Kept('type: "Crop" crop_param { offset: 1 }', [MAP, (7, 7, 3, 2)]),
    Kept('type: "Dropout"', [MAP], in_place=True),
    Kept('type: "Dropout"', [MAP], phase=TEST),
    Kept('type: "Eltwise" eltwise_param { operation: MAX }', [MAP, MAP, MAP]),
    Kept('type: "Eltwise" eltwise_param { operation: PROD }', [MAP, MAP, MAP]),
    Kept('type: "Eltwise" eltwise_param { coeff: 1 coeff: -2 coeff: 3 }', [MAP, MAP, MAP]),
    Kept('type: "ELU"', [MAP], in_place=True),
    Kept('type: "Filter"', [MAP, (2,)]),
    Kept('type: "LRN"', [MAP]),
    Kept('type: "LRN" lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 }', [MAP]),
    Kept('type: "MVN"', [MAP]),
    Kept('type: "Normalize" norm_param { across_spatial: false channel_shared: false }', [MAP]),
    Kept('type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }', [MAP]),
    Kept('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 }', [MAP], tops=2),
    Kept('type: "Pooling" pooling_param { pool: AVE global_pooling: true }', [(2, 3, 5, 8)]),
    Kept('type: "PReLU"', [MAP], in_place=True),
    Kept('type: "Reduction" reduction_param { operation: SUMSQ axis: 1 }', [MAP]),
    Kept('type: "Reorg" reorg_param { stride: 2 }', [(2, 4, 6, 2)]),
    Kept('type: "ReLU6"', [MAP], in_place=True),
    Kept('type: "Reverse" reverse_param { axis: 1 }', [MAP]),
    Kept('type: "Scale" scale_param { bias_term: true filler { value: 2 } }', [MAP], in_place=True),
    Kept('type: "Scale"', [MAP, (3, 4)]),
    Kept('type: "Sigmoid"', [MAP], in_place=True),
    Kept('type: "Slice"', [MAP], tops=3),
    Kept('type: "Softmax"', [MAP]),
    Kept('type: "Split"', [MAP], tops=6),
    Kept('type: "TanH"', [MAP]),
    Kept('type: "Tile" tile_param { tiles: 2 }', [MAP]),
]


@pytest.fixture(params=LAYERS, ids=lambda kept: f"{kept.text} {kept.phase}{' in place' if kept.in_place else ''}")
def kept(request: pytest.FixtureRequest) -> Any:
    yield request.param
    minicaffe.set_mode_cpu()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1, 1, shape)


def connected(kept: Kept) -> LayerCase:
    bottoms = [numbers(*shape, seed=i) for i, shape in enumerate(kept.shapes)]
    case = LayerCase(kept.text, *bottoms, tops=kept.tops, phase=kept.phase, in_place=kept.in_place)
    if case.layer.type == "BatchNorm":
        case.layer.blobs[1].data[...] = 2
        case.layer.blobs[2].data[...] = 1
    for i, top in enumerate(case.top):
        top.diff[...] = numbers(*top.shape, seed=10 + i)
    return case


def run(kept: Kept, forward_on: str, backward_on: str) -> list[np.ndarray]:
    """All that a layer gives when its forward, backward and second forward run in these modes."""
    case, results = connected(kept), []
    rng.set_random_seed(4)
    for mode, forward in ((forward_on, True), (backward_on, False), (forward_on, True)):
        minicaffe.set_mode_gpu() if mode == "gpu" else minicaffe.set_mode_cpu()
        if forward:
            case.layer.forward_pass(case.bottom, case.top)
            results += [top.data.copy() for top in case.top]
        else:
            case.layer.backward_pass(case.top, [True] * len(case.bottom), case.bottom)
            results += [bottom.diff.copy() for bottom in case.bottom]
    return results + [array.copy() for blob in case.layer.blobs for array in (blob.data, blob.diff)]


def test_the_mode_may_change_between_forward_and_backward(kept: Kept) -> None:
    expected = run(kept, "cpu", "cpu")
    for forward_on, backward_on in (("gpu", "gpu"), ("cpu", "gpu"), ("gpu", "cpu")):
        for actual, array in zip(run(kept, forward_on, backward_on), expected, strict=True):
            np.testing.assert_allclose(actual, array, rtol=1e-10, atol=1e-12)


def test_nothing_but_masks_and_changed_inputs_moves(kept: Kept) -> None:
    """The first pass takes bottoms, weights and top diffs to the device; in the second one all is there."""
    minicaffe.set_mode_gpu()
    from minicaffe.cuda.device import current

    case = connected(kept)
    transfers = current().transfers
    for _ in range(2):
        before = transfers.to_device, transfers.to_host
        case.layer.forward_pass(case.bottom, case.top)
        case.layer.backward_pass(case.top, [True] * len(case.bottom), case.bottom)
    mask = case.top[0].count if case.layer.type == "Dropout" and kept.phase == TRAIN else 0
    assert (transfers.to_device - before[0], transfers.to_host - before[1]) == (mask, 0)
    if case.layer.type != "Split":  # which has nothing to do in forward
        assert case.top[0].data_state in (MemoryState.DEVICE, MemoryState.SYNCED)


@pytest.mark.parametrize(
    "text",
    ['type: "Flatten"', 'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 } }', 'type: "Split"', 'type: "Silence"'],
)
def test_layers_that_share_memory_move_nothing(text: str, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(minicaffe.set_mode_cpu)
    case = LayerCase(text, numbers(*MAP), tops=0 if "Silence" in text else 1)
    minicaffe.set_mode_gpu()
    from minicaffe.cuda.device import current

    case.bottom[0].device_data("update")
    case.bottom[0].device_diff("update")
    transfers = current().transfers
    before = transfers.to_device, transfers.to_host
    case.layer.forward_pass(case.bottom, case.top)
    case.layer.backward_pass(case.top, [True], case.bottom)
    assert (transfers.to_device, transfers.to_host) == before
    assert case.bottom[0].data_state == MemoryState.DEVICE


NET = """
input: "data" input_shape { dim: 2 dim: 3 dim: 9 dim: 8 }
layer { name: "norm" type: "LRN" bottom: "data" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "bn" type: "BatchNorm" bottom: "pool" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "sum" type: "Eltwise" bottom: "pool" bottom: "bn" top: "sum" }
layer { name: "drop" type: "Dropout" bottom: "sum" top: "sum" }
layer { name: "both" type: "Concat" bottom: "sum" bottom: "pool" top: "both" }
layer { name: "mean" type: "Pooling" bottom: "both" top: "mean" pooling_param { pool: AVE global_pooling: true } }
layer { name: "flat" type: "Flatten" bottom: "mean" top: "flat" }
layer { name: "prob" type: "Softmax" bottom: "flat" top: "prob" }
"""


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_net_moves_its_input_its_output_and_a_mask(phase: Phase, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(minicaffe.set_mode_cpu)
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    net, x = Net(str(path), phase), numbers(2, 3, 9, 8)
    for blob in net.layer_dict["bn"].blobs:
        blob.data[...] = 1
    rng.set_random_seed(2)
    expected = net.forward(data=x)["prob"].copy()
    minicaffe.set_mode_gpu()
    from minicaffe.cuda.device import current

    net.forward(data=x)  # takes the weights there
    transfers = current().transfers
    before = transfers.to_device, transfers.to_host
    rng.set_random_seed(2)
    np.testing.assert_allclose(net.forward(data=x)["prob"], expected, rtol=1e-5)
    mask = net.blobs["sum"].count if phase == TRAIN else 0
    moved = transfers.to_device - before[0], transfers.to_host - before[1]
    assert moved == (net.blobs["data"].count * 4 + mask, expected.nbytes)


IN_PLACE = """
input: "x" input_shape { dim: 2 dim: 3 dim: 4 dim: 5 }
layer { name: "s" type: "Scale" bottom: "x" top: "y" scale_param { bias_term: true } }
layer { name: "t" type: "Scale" bottom: "y" top: "y" }
layer { name: "n" type: "AbsVal" bottom: "y" top: "y" }
layer { name: "p" type: "PReLU" bottom: "y" top: "y" }
"""


def test_nothing_is_kept_for_a_backward_that_never_comes() -> None:
    """A net without a loss needs no gradient, unless it is asked for; on the CPU backward may still be asked for later."""
    minicaffe.set_mode_gpu()
    net = Net(parse_net(IN_PLACE))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)
    kept = [layer._input.blob for layer in net.layers[1:]]  # type: ignore[attr-defined]
    net.forward(x=x)
    assert [blob.count for blob in kept] == [0, 0, 0, 0]
    net.force_backward()
    with pytest.raises(LayerError, match=r'PReLU layer "p": its forward kept nothing .* call force_backward before forward'):
        net.backward(y=x)
    net.forward(x=x)
    assert [blob.count for blob in kept] == [0, 120, 120, 120]  # the first does not work in place
    dx = net.backward(y=x)["x"].copy()
    minicaffe.set_mode_cpu()
    net.forward(x=x)
    np.testing.assert_allclose(net.backward(y=x)["x"], dx, rtol=1e-5)
