"""What Python adds to PyCUDA's launches, in units of those: benchmarks/launches.py."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import minicaffe
from minicaffe import Net
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.gpu

NET = """
input: "x" input_shape { dim: 1 dim: 4 dim: 8 dim: 8 }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 3 } }
"""


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


def test_a_launch_and_a_layer_cost_few_bare_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its bare calls, a launch takes 0.6 of one, a layer 4.6 and 7.3. Where each access to a blob makes a context
    current and each convolution computes its sizes anew, that is 1.7, 7.7 and 19."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    bare, _, within, relu, block = importlib.import_module("benchmarks.launches").measured()
    assert (bare.beyond, relu.launches, block.launches) == (0, 1, 1.75)
    assert within.beyond < 1.4
    assert relu.beyond < 7
    assert block.beyond < 12


def test_sizes_are_computed_once_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(parse_net(NET))
    made = net.layers[1]._new_maps  # type: ignore[attr-defined]
    checked = net.layers[1]._check_bottoms  # type: ignore[attr-defined]
    calls: list[str] = []
    monkeypatch.setattr(net.layers[1], "_new_maps", lambda *blobs: calls.append("maps") or made(*blobs))
    monkeypatch.setattr(net.layers[1], "_check_bottoms", lambda *blobs: calls.append("shapes") or checked(*blobs))
    for size in (8, 8, 9, 9):
        net.blobs["x"].reshape(1, 4, size, size)
        assert net.forward()["c"].shape == (1, 4, size - 2, size - 2)
    assert calls == ["maps", "shapes", "maps"]
