from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from golden import GOLDEN, SHARED, cases, run_case
from layer_case import LayerCase

import minicaffe
from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.layers import CATALOGUE, python
from minicaffe.layers.anchor_target import AnchorTarget
from minicaffe.layers.proposal import Proposal
from minicaffe.layers.proposal_target import ProposalTarget
from minicaffe.layers.roi_data import RoIData
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2
from minicaffe.source import LayerSource, Place


class Affine(minicaffe.Layer):
    """y = a x + bias, "a" from the param_str, bias learnable: pycaffe's protocol."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        assert self.param_str == self.param_str_
        self.a = float(self.param_str)
        self.seen = str(self.phase)
        self.blobs.add_blob(bottom[0].channels)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.a * bottom[0].data + self.blobs[0].data

    def backward(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.blobs[0].diff[...] += top[0].diff.sum(axis=0)
        if propagate_down[0]:
            bottom[0].diff[...] = self.a * top[0].diff


class Broken(minicaffe.Layer):
    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        raise KeyError("no such thing")


def layer(module: str, name: str, param_str: str = "") -> str:
    return f'type: "Python" python_param {{ module: "{module}" layer: "{name}" param_str: "{param_str}" }}'


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a test registers and allows is forgotten after it."""
    kept = dict(CATALOGUE), dict(minicaffe.layers.registered), set(python._allowed)
    yield
    for table, before in zip((CATALOGUE, minicaffe.layers.registered), kept[:2], strict=True):
        table.clear()
        table.update(before)
    python._allowed.clear()
    python._allowed.update(kept[2])


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("my_layers")
    made.Affine, made.Broken, made.text = Affine, Broken, "text"  # type: ignore[attr-defined]
    sys.modules["my_layers"] = made
    yield made
    del sys.modules["my_layers"]


@pytest.fixture
def caffe(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import caffe` gives minicaffe, and modules beside the golden prototxts can be imported."""
    monkeypatch.setitem(sys.modules, "caffe", minicaffe)
    monkeypatch.syspath_prepend(str(GOLDEN / "Python"))
    monkeypatch.delitem(sys.modules, "golden_pylayers", raising=False)
    minicaffe.allow_module("golden_pylayers")


@pytest.mark.usefixtures("caffe")
@pytest.mark.parametrize("case", cases("Python"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 1


@pytest.mark.parametrize(("phase", "name"), [(TRAIN, "TRAIN"), (TEST, "TEST")])
def test_an_allowed_module(module: types.ModuleType, phase: minicaffe.Phase, name: str) -> None:
    minicaffe.allow_module("my_layers")
    x = np.arange(6.0).reshape(2, 3)
    case = LayerCase(layer("my_layers", "Affine", "2.5"), x, phase=phase)
    case.layer.blobs[0].data[...] = [1, 2, 3]
    np.testing.assert_array_equal(case.forward()[0], 2.5 * x + [1, 2, 3])
    assert case.layer.seen == name  # type: ignore[attr-defined]
    (dx,) = case.backward(np.ones((2, 3)))
    np.testing.assert_array_equal(dx, np.full((2, 3), 2.5))
    np.testing.assert_array_equal(case.layer.blobs[0].diff, [2, 2, 2])
    assert isinstance(case.layer, Affine)


def test_gradient_of_a_python_layer(module: types.ModuleType) -> None:
    minicaffe.register("Affine", Affine)
    assert minicaffe.check_gradient(layer("any", "Affine", "2.5"), np.arange(6.0).reshape(2, 3)).elements == 9


def test_a_registered_class_serves_both_spellings() -> None:
    minicaffe.register("Affine", Affine)
    assert isinstance(LayerCase(layer("wherever", "Affine", "1"), np.zeros((2, 3))).layer, Affine)
    text = 'type: "Affine" python_param { param_str: "1" }'
    assert isinstance(LayerCase(text, np.zeros((2, 3))).layer, Affine)
    minicaffe.register("here.Other", Affine)
    assert isinstance(LayerCase(layer("here", "Other", "1"), np.zeros((2, 3))).layer, Affine)


def test_a_built_in_type_is_no_python_layer() -> None:
    with pytest.raises(LayerError, match='the layer "ReLU" of the Python module "mine" is not built in'):
        LayerCase(layer("mine", "ReLU"), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rpn.proposal_layer.ProposalLayer", Proposal),
        ("rpn.anchor_target_layer.AnchorTargetLayer", AnchorTarget),
        ("rpn.proposal_target_layer.ProposalTargetLayer", ProposalTarget),
        ("roi_data_layer.layer.RoIDataLayer", RoIData),
    ],
)
def test_stand_ins(name: str, kind: type) -> None:
    module_name, _, class_name = name.rpartition(".")
    param = caffe_pb2.LayerParameter(name="x", type="Python")
    param.python_param.module, param.python_param.layer = module_name, class_name
    made = minicaffe.layers.create(param)
    assert type(made) is kind


def test_an_allowed_module_goes_before_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = types.ModuleType("rpn.proposal_layer")
    mine.ProposalLayer = Affine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rpn", types.ModuleType("rpn"))
    monkeypatch.setitem(sys.modules, "rpn.proposal_layer", mine)
    minicaffe.allow_module("rpn.proposal_layer")
    assert isinstance(LayerCase(layer("rpn.proposal_layer", "ProposalLayer", "1"), np.zeros((2, 3))).layer, Affine)


def test_nothing_is_imported_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        LayerError, match=r'minicaffe.allow_module\("hostile_module"\) to let it be imported, or minicaffe.register'
    ):
        LayerCase(layer("hostile_module", "Layer"), np.zeros((2, 3)))
    assert "hostile_module" not in sys.modules


def test_the_error_names_the_place() -> None:
    param = caffe_pb2.LayerParameter(name="odd", type="Python")
    param.python_param.module, param.python_param.layer = "mine", "Odd"
    source = LayerSource(Place("net.prototxt", 3), {"python_param.module": Place("net.prototxt", 9)})
    with pytest.raises(LayerError, match=r'Python layer "odd": .*\(net.prototxt:9\)'):
        minicaffe.layers.create(param, source=source)


def test_errors(module: types.ModuleType) -> None:
    minicaffe.allow_module("my_layers")
    minicaffe.allow_module("no_such_module")
    for name, what in (("Missing", 'has no "Missing"'), ("text", 'has no layer class "text"')):
        with pytest.raises(
            LayerError, match=f'the Python module "my_layers" {what}; a layer is a class derived from minicaffe.Layer'
        ):
            LayerCase(layer("my_layers", name), np.zeros((2, 3)))
    with pytest.raises(LayerError, match='cannot import the Python module "no_such_module": No module named'):
        LayerCase(layer("no_such_module", "Layer"), np.zeros((2, 3)))


def test_an_exception_keeps_its_type_and_names_the_layer(module: types.ModuleType) -> None:
    minicaffe.allow_module("my_layers")
    with pytest.raises(KeyError, match="no such thing") as caught:
        LayerCase(layer("my_layers", "Broken"), np.zeros((2, 3)))
    assert caught.traceback[-1].name == "setup"
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ['Python layer "layer": its code raised this error']


@pytest.mark.skipif(not (SHARED / "models").is_dir(), reason="../shared/models is absent")
def test_every_python_layer_of_the_published_nets_is_built_in() -> None:
    import re

    found = set()
    for path in (SHARED / "models").rglob("*"):
        if path.suffix in (".prototxt", ".pt"):
            text = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
            found |= set(re.findall(r"module:\s*['\"]([\w.]+)['\"]\s*layer:\s*['\"](\w+)['\"]", text))
    assert found == set(python.STAND_INS)
