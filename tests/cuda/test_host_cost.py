"""What is done once, and not at each launch; and the table of what Python adds to launches (benchmarks/launches.py)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import minicaffe
from minicaffe import Net
from minicaffe.cuda import blas, cudnn, graph
from minicaffe.cuda.compile import Kernels
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


def test_the_table_counts_the_launches_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.setenv("MINICAFFE_BENCHMARKS_SMOKE", "1")
    monkeypatch.setattr(cudnn._state, "allowed", False)  # what cuDNN launches is not counted
    bare, _, within, relu, block, *as_graphs = importlib.import_module("benchmarks.launches").measured()
    assert (bare.beyond, relu.launches) == (0, 1)
    assert block.launches == (0.5 if blas.backend().startswith("cuBLAS") else 0.75)  # whose own launch is not counted
    assert [row.launches for row in as_graphs] == [1 / 10, 1 / 40] * graph.available()
    assert min(row.taken for row in (bare, within, relu, block)) > 0


def test_a_kernel_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    net, bound = Net(parse_net(NET)), []
    net.forward()
    bind = Kernels.bind
    monkeypatch.setattr(Kernels, "bind", lambda *arguments: bound.append(arguments) or bind(*arguments))
    net.forward()
    assert bound == []


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
