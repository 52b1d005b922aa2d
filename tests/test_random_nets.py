"""Random nets (tests/fuzz/nets.py): a round of them, and that what is wrong is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from net_builder import RandomNet
from nets import run
from random_nets import random_net

from minicaffe import get_num_threads, rng, set_num_threads
from minicaffe.layers import CATALOGUE

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and the random generator put back afterwards."""
    monkeypatch.setattr(rng, "_generator", rng._generator)
    threads = get_num_threads()
    set_num_threads(1)
    yield
    set_num_threads(threads)


def test_a_round() -> None:
    counts: Counter[str] = Counter()
    assert not "".join(run(seed, counts) for seed in range(60))
    assert counts["nets"] >= 55
    assert counts["gradients"] >= 300
    assert counts["layers beside float64"] >= 1000
    assert sum(number for name, number in counts.items() if name.startswith("left out")) < 20


def test_a_seed_is_always_the_same_net() -> None:
    one, other = random_net(7), random_net(7)
    assert one.text == other.text != random_net(8).text
    assert {name: values.tolist() for name, values in one.inputs.items()} == {
        name: values.tolist() for name, values in other.inputs.items()
    }


def test_nets_are_of_many_types() -> None:
    types = {kind for seed in range(600) for kind in random_net(seed).kinds}
    assert len(types) >= 60
    assert types <= set(CATALOGUE)


def first_with(kind: str) -> tuple[int, RandomNet]:
    """The first seed whose net has a layer of this type and forces backward."""
    nets = ((seed, random_net(seed)) for seed in range(1000))
    return next((seed, net) for seed, net in nets if kind in net.kinds and net.forced and not net.stopped)


def test_a_gradient_that_is_wrong_by_a_thousandth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CATALOGUE["InnerProduct"].backward_cpu

    def wrong(self: Any, top: Any, propagate_down: Any, bottom: Any) -> None:
        right(self, top, propagate_down, bottom)
        for blob in self.blobs:
            blob.diff[...] *= 1.001

    monkeypatch.setattr(CATALOGUE["InnerProduct"], "backward_cpu", wrong)
    found = [run(seed, Counter()) for seed in range(40) if "InnerProduct" in random_net(seed).kinds]
    assert any("gradient of innerproduct" in words for words in found)


def test_what_is_wrong_in_float32_alone_is_found_with_the_smallest_net(monkeypatch: pytest.MonkeyPatch) -> None:
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
