"""The benchmarks' small nets, run by PyTorch's functions, give minicaffe's outputs."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")

SIZES: dict[str, tuple[int, ...]] = {
    "mobilenet": (64,),
    "mobilenet_ssd": (96,),
    "shufflenet": (64,),
    "densenet121": (64,),
    "squeezenet": (67,),
    "resnet50": (64,),
    "segnet": (45, 60),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_same_outputs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if find_spec("torchvision") is None:
        if name == "mobilenet_ssd":
            pytest.skip("torchvision, which has the NMS, is not installed")
        monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    architectures, contenders, nets = (
        importlib.import_module(f"benchmarks.{m}") for m in ("_architectures", "_contenders", "_nets")
    )
    size = SIZES[name]
    net = nets.random_net(getattr(architectures, name)(*size), (1, 3, size[0], size[-1]))
    runs = {"minicaffe": net.forward, "PyTorch": contenders.torch_run(net)}
    compare = {"mobilenet_ssd": contenders.same_rows, "segnet": contenders.nearly_all}.get(name, contenders.same)
    contenders.check(name, runs, compare, 1e-4)
    (y,) = net.forward().values()
    assert y.std() > 0
