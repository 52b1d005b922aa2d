"""Random nets (tests/fuzz/nets.py): a round of them, and that what is wrong is found."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import net_ways
import numpy as np
import pytest
from extras import require
from net_builder import LARGE, RandomNet
from net_values import FoundError
from net_ways import check_keep
from nets import run
from random_nets import random_net

from minicaffe import set_num_threads
from minicaffe.layers import CATALOGUE

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    set_num_threads(1)


def test_a_round() -> None:
    """The round has 10 nets. .ci/full checks 200."""
    require("onnx")
    counts: Counter[str] = Counter()
    assert not "".join(run(seed, counts) for seed in range(10))
    assert counts["nets"] >= 9
    assert counts["gradients"] >= 50
    assert counts["layers beside float64"] >= 160
    assert sum(number for name, number in counts.items() if name.startswith("left out")) < 5


@pytest.mark.gpu
def test_a_round_on_a_gpu() -> None:
    counts: Counter[str] = Counter()
    assert not "".join(run(seed, counts, "device") for seed in range(4))
    assert counts["on the device"] >= 2


def test_a_seed_is_always_the_same_net() -> None:
    one, other = random_net(7), random_net(7)
    assert one.text == other.text != random_net(8).text
    assert {name: values.tolist() for name, values in one.inputs.items()} == {
        name: values.tolist() for name, values in other.inputs.items()
    }


def test_a_net_whose_only_blob_is_too_large_gets_a_loss() -> None:
    net = random_net(1436)
    assert net.inputs["x0"].size > LARGE and len(net.inputs) > 5


@pytest.mark.slow
def test_nets_are_of_many_types() -> None:
    types = {kind for seed in range(600) for kind in random_net(seed).kinds}
    assert len(types) >= 60
    assert types <= set(CATALOGUE)


@cache
def first_with(kind: str) -> tuple[int, RandomNet]:
    """Return the first seed whose net has a layer of this type and forces backward."""
    nets = ((seed, random_net(seed)) for seed in range(1000))
    return next((seed, net) for seed, net in nets if kind in net.kinds and net.forced and not net.stopped)


@pytest.mark.slow
def test_a_gradient_that_is_wrong_by_a_thousandth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CATALOGUE["InnerProduct"].backward_cpu

    def wrong(self: Any, top: Any, propagate_down: Any, bottom: Any) -> None:
        right(self, top, propagate_down, bottom)
        for blob in self.blobs:
            blob.diff[...] *= 1.001

    monkeypatch.setattr(CATALOGUE["InnerProduct"], "backward_cpu", wrong)
    found = (run(seed, Counter()) for seed in range(40) if "InnerProduct" in random_net(seed).kinds)
    assert any("gradient of innerproduct" in words for words in found)  # stops at the first one found


@pytest.mark.slow
def test_what_is_wrong_in_float32_alone_is_found_with_the_smallest_net(monkeypatch: pytest.MonkeyPatch) -> None:
    require("onnx")
    right = CATALOGUE["BNLL"].forward_cpu

    def wrong(self: Any, bottom: Any, top: Any) -> None:
        right(self, bottom, top)
        if self.dtype == "float32":
            top[0].data[...] *= 1.001

    seed, net = first_with("BNLL")
    monkeypatch.setattr(CATALOGUE["BNLL"], "forward_cpu", wrong)
    words = run(seed, Counter())
    assert words.startswith(f"\nseed {seed}: forward of bnll")
    assert words.endswith(f"again: python tests/fuzz/nets.py --count 1 --seed {seed}\n")
    assert words.count("\nlayer {") == net.kinds.index("BNLL") + 1


@pytest.mark.slow
def test_a_gradient_that_is_nan_in_both_types_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seed, _ = first_with("BNLL")
    right = CATALOGUE["BNLL"].backward_cpu

    def wrong(self: Any, top: Any, propagate_down: Any, bottom: Any) -> None:
        right(self, top, propagate_down, bottom)
        bottom[0].diff[...] = np.nan

    monkeypatch.setattr(CATALOGUE["BNLL"], "backward_cpu", wrong)
    words = run(seed, Counter())
    assert words.startswith(f"\nseed {seed}: backward of bnll") and "in float64: not finite" in words


@pytest.mark.slow
def test_what_is_noise_in_float32_is_left_out() -> None:
    """MVN of a map that is constant but for float32's rounding, exported: its values are that rounding over epsilon."""
    pytest.importorskip("onnxruntime")
    counts: Counter[str] = Counter()
    assert not run(576, counts)
    assert counts["left out: unsteady values, ONNX"] == 1


def test_a_gradient_of_terms_that_cancel_is_checked_without_mvns_eps() -> None:
    require("onnx")
    counts: Counter[str] = Counter()
    assert not run(7303, counts) and counts["gradients"] > 0


@pytest.mark.slow
def test_memory_that_is_not_given_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    large = next(net for net in map(random_net, range(373, 1000)) if net.large)
    check_keep(large)
    peaks = iter([399_000, 500_000])
    monkeypatch.setattr(net_ways, "_peak", lambda net, keep: next(peaks))
    with pytest.raises(FoundError, match="keeps its outputs only takes 101,000 bytes more"):
        check_keep(large)
