"""Kernels and steps: who computes, and for whose layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import MethodType

import numpy as np
import pytest
from layer_case import LayerCase

import minicaffe
from minicaffe import TEST, Blob, Layer, Net, kernels, register
from minicaffe.compiled.jit import loop
from minicaffe.formats.prototxt import parse_net
from minicaffe.kernels import kernel, makes_steps, provides, step_of
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.pool.pooling import Pooling

POOL = 'type: "Pooling" pooling_param { kernel_size: 2 stride: 2 }'
SUM = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'


@kernel
def doubled(x: np.ndarray) -> np.ndarray:
    """Twice x."""
    return x * 2


def test_a_provider_computes_and_may_leave_arguments_to_numpy() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")

    @provides(doubled)
    def of_rows(x: np.ndarray) -> np.ndarray:
        return x + x + 100 if x.ndim == 1 else doubled.by_numpy(x)

    for way, of_row in (("numpy", 2), ("numba", 102)):
        with kernels.using(way):
            assert (doubled(np.ones(3))[0], doubled(np.ones((2, 3)))[0, 0]) == (of_row, 2)
    assert doubled.by_numpy(np.ones(3))[0] == 2


def test_a_provider_replaces_that_of_an_import_that_was_interrupted() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")

    @kernel
    def number() -> int:
        return 0

    def offered(value: int) -> None:
        @provides(number)
        def by_another() -> int:
            return value

    offered(1)
    offered(2)
    with kernels.using("numba"):
        assert number() == 2


def case_of(text: str, *shapes: tuple[int, ...]) -> LayerCase:
    xs = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    return LayerCase(text, *xs, phase=TEST, dtype=np.float32)


def test_a_layer_whose_forward_is_its_own_has_no_step() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        case = case_of(POOL, (2, 3, 4, 6))
        assert makes_steps(case.layer) and step_of(case.layer, case.bottom, case.top) is not None
        case.layer.forward_cpu = MethodType(lambda self, bottom, top: top[0].data.fill(7), case.layer)
        assert (case.forward()[0] == 7).all()


class OtherSum(Eltwise):
    """Sums that are 5 larger."""

    def _forward(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: object) -> None:
        top[0].data[...] = bottom[0].data + bottom[1].data + 5


class ShapedPooling(Pooling):
    """Another setup, the same forward."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)


@pytest.mark.parametrize("way", ["numpy", "numba"])
def test_classes_derived_from_ours_compute_what_they_say(way: str) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    register("OtherSum", OtherSum)
    register("ShapedPooling", ShapedPooling)
    with kernels.using(way):
        case = case_of('type: "OtherSum"', (2, 3), (2, 3))
        np.testing.assert_allclose(case.forward()[0], case.bottom[0].data + case.bottom[1].data + 5)
        pooled = case_of(POOL.replace("Pooling", "ShapedPooling", 1), (2, 3, 4, 6))
        assert makes_steps(pooled.layer) == (way == "numba")
        np.testing.assert_allclose(pooled.forward()[0], pooled.bottom[0].data.reshape(2, 3, 2, 2, 3, 2).max((3, 5)))


class Sizes(Layer):
    """A layer with an attribute that is called kernels."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.kernels = [3, 5, 7]

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = bottom[0].data * sum(self.kernels)


def test_a_users_layer_may_have_any_attributes() -> None:
    register("Sizes", Sizes)
    net = Net(parse_net(SUM + 'layer { name: "y" type: "Sizes" bottom: "x" top: "y" }'), TEST)
    assert (net.forward(x=np.ones((2, 3)))["y"] == 15).all()


@pytest.mark.parametrize("way", ["numpy", "numba"])
@pytest.mark.parametrize(("text", "name", "value"), [("alpha: 2", "beta", 0.1), ("norm_region: WITHIN_CHANNEL", "alpha", 3.0)])
def test_attributes_that_are_set_after_setup_count(text: str, name: str, value: float, way: str) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using(way):
        case = case_of(f'type: "LRN" lrn_param {{ {text} }}', (1, 3, 5, 7))
        before = case.forward()[0].copy()
        setattr(case.layer, name, value)
        assert (case.forward()[0] != before).any()


def test_any_value_may_be_set_on_a_layer_whose_step_is_kept() -> None:
    class Odd:
        __hash__ = None

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("of one number only")

    case = case_of(POOL, (2, 3, 4, 6))
    case.layer.watched = True
    case.layer.mine = Odd()
    changes = case.layer.changes
    case.layer.mine = case.layer.mine
    assert case.layer.changes == changes > 0
    case.layer.mine = Odd()
    assert case.layer.changes > changes
    case.layer.choice = None  # equal to the class's
    assert case.layer.changes == changes + 2
    del case.layer.name
    assert case.layer.changes > changes + 2


@loop("T[::1]")
def nothing(x: np.ndarray) -> None:
    """Do nothing."""


def test_which_loops_a_kernel_names() -> None:
    @kernel
    def made() -> None: ...

    provides(made, loops=(nothing,), backward=(nothing,))(lambda: None)
    assert made.loops() == [nothing] and made.loops(backward=True) == [nothing, nothing]


def test_a_file_of_providers_has_the_name_of_at_most_one_file_of_layers() -> None:
    """kernels.py finds a provider by the last part of its module's name."""
    package = Path(minicaffe.__file__).parent
    names = Counter(path.stem for path in (package / "layers").rglob("*.py"))
    providers = {path.stem for path in (package / "compiled").glob("*.py")} - {"__init__"}
    assert not any((package / "compiled").glob("*/*.py"))
    assert len(providers & names.keys()) > 20
    assert [name for name in providers if names[name] > 1] == []


SMALL = SUM + 'layer { name: "p" type: "Power" bottom: "x" top: "p" power_param { scale: 2 } }'


def test_loops_are_loaded_where_they_save_more_than_that_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with few passes is computed by NumPy; with many, by loops from the second pass on, whose shapes are known."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    monkeypatch.delenv("MINICAFFE_LOOPS", raising=False)
    many = int(kernels.LOADING / kernels.PER_PASS) + 1
    for passes, after in ((1, [False, False]), (many, [False, True]), (None, [True, True])):
        with kernels.using("auto"), kernels.expecting(1):
            kernels.expect(passes)
            net, found = Net(parse_net(SMALL, file="t.prototxt")), []
            for _ in range(2):
                net.forward()
                found.append(kernels.compiled())
            assert found == after, passes
            assert ("few passes" in kernels.description()) == (not after[1])
    with kernels.using("auto"):
        assert kernels.compiled(), "a block's count ends with it"


def test_a_forward_of_large_blobs_pays_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    monkeypatch.delenv("MINICAFFE_LOOPS", raising=False)
    net = Net(parse_net(SMALL, file="t.prototxt"))
    passes = int(kernels.LOADING / (kernels.PER_PASS + kernels.PER_ELEMENT * 2 * 300 * 2000)) + 1
    for shape, pays in (((2, 3), False), ((300, 2000), True)):
        net.blobs["x"].reshape(*shape)
        net.forward()
        with kernels.using("auto"), kernels.expecting(passes):
            kernels.count_work(net.nodes, backward=False)
            assert kernels.compiled() == pays


def test_the_users_choice_goes_before_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    monkeypatch.setenv("MINICAFFE_LOOPS", "numba")
    with kernels.using("numba"), kernels.expecting(1):
        assert kernels.compiled()
    monkeypatch.delenv("MINICAFFE_LOOPS")
    with kernels.expecting(1), kernels.using("numba"):
        assert kernels.compiled()


def test_a_watched_layer_does_not_wait_for_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is no layer's time: a watched forward loads the loops before its first layer, another one in the background."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    asked = []
    monkeypatch.setattr("minicaffe.net.compile_loops", lambda layers, backward, ahead: asked.append(ahead))
    for watched in (False, True):
        net = Net(parse_net(SMALL, file="t.prototxt"))
        if watched:
            net.before_forward(lambda i: None)
        with kernels.using("numba"):
            net.forward()
            net.forward()
    assert asked == [True, False]
