"""Each type has a class, tests, and class facts that the net can rely on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recordings import SHARED, needs

from minicaffe import layers
from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.layer import Layer, gpu_methods_apply
from minicaffe.layers import CATALOGUE, FORK_TYPES
from minicaffe.proto import caffe_pb2

ROOT = Path(__file__).resolve().parents[2]
ALIASES = {"ConvolutionDepthwise": "DepthwiseConvolution", "MaskPooling": "SpatialProduct"}
BUILT_IN = {kind: layer for kind, layer in CATALOGUE.items() if kind not in ALIASES}
KINDS = sorted(BUILT_IN)


def test_each_type_has_tests_beside_those_of_its_family() -> None:
    """In the folder of tests that mirrors the class's, or as a row of the table in test_neurons.py."""
    tests = ROOT / "tests" / "layers"
    rows = set(re.findall(r'\(\'type: "(\w+)"', (tests / "test_neurons.py").read_text(encoding="utf-8")))
    untested = []
    for kind, layer in BUILT_IN.items():
        folder = tests.joinpath(*layer.__module__.split(".")[2:-1])
        texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
        if kind not in rows and not any(re.search(rf"\b{kind}\b", text) for text in texts):
            untested.append(kind)
    assert untested == []


def test_class() -> None:
    assert all(issubclass(layer, Layer) for layer in BUILT_IN.values())
    assert {kind: (layer.type, layer.__name__) for kind, layer in BUILT_IN.items()} == {kind: (kind, kind) for kind in BUILT_IN}


def test_docstrings() -> None:
    """The first line is what `minicaffe layers` shows; bottoms and tops are described."""
    wrong = []
    for kind, layer in BUILT_IN.items():
        text, module = layer.__doc__ or "", inspect.getmodule(layer)
        if not text.partition("\n")[0].strip():
            wrong.append(f"{kind}: the first line must say what the layer does")
        wrong += [
            f"{kind}: the docstring must name the {word}s"
            for word in ("bottom", "top")
            if not re.search(rf"\b{word}s?\b", text, re.IGNORECASE)
        ]
        if module is None or not module.__doc__:
            wrong.append(f"{kind}: the module must say what it computes, and its source")
    assert wrong == []


def bounds(count: int | tuple[int, int | None]) -> tuple[int, int | None]:
    return (count, count) if isinstance(count, int) else count


def test_counts() -> None:
    wrong = []
    for kind, layer in BUILT_IN.items():
        (least, bottoms), (least_tops, tops) = bounds(layer.num_bottom), bounds(layer.num_top)
        right = [
            least >= 0 and (bottoms is None or bottoms >= least),
            least_tops >= 0 and (tops is None or tops >= least_tops),
            all(i >= 0 and (bottoms is None or i < bottoms) for i in layer.index_bottoms),
            not layer.in_place or bottoms != 0,
            not (layer.in_place or layer.is_loss) or tops != 0,
        ]
        wrong += [(kind, right)] * (not all(right))
    assert wrong == []


def test_wrong_counts_are_named() -> None:
    """One bottom or top too many or too few is an error with both numbers, before setup reads anything."""
    found = []
    for kind, built_in in BUILT_IN.items():
        layer = built_in(caffe_pb2.LayerParameter(name="made", type=kind))
        for what, count in (("bottom", layer.num_bottom), ("top", layer.num_top)):
            least, most = bounds(count)
            for wrong in {least - 1, least if most is None else most + 1} - {-1, least}:
                numbers = (wrong, 0) if what == "bottom" else (bounds(layer.num_bottom)[0], wrong)
                try:
                    layer.connect(*([Blob()] * number for number in numbers))
                except LayerError as error:
                    if re.search(rf'{kind} layer "made": takes .*{what}.*, got {wrong}', str(error)):
                        continue
                found.append((kind, what, wrong))
    assert found == []


def test_catalogue_is_sorted_and_knows_no_fork_type() -> None:
    assert list(layers.BUILT_IN) == sorted(layers.BUILT_IN)
    assert not set(FORK_TYPES) & set(CATALOGUE)


WILD = SHARED / "wild"
AWAITED = {"Axpy", "DeformableConvolution", "DeformablePSROIPooling", "Lstm", "ROIWarping", "RegionLoss"}
"""Types that the catalogue gets, or has."""


@needs(WILD)
def test_every_type_of_the_published_nets_is_built_in_or_has_an_origin() -> None:
    text = "\n".join(path.read_text(errors="replace") for path in WILD.rglob("*") if path.is_file() and path.suffix != ".md")
    types = set(re.findall(r'^  type: "(\w+)"', re.sub("#.*", "", text), flags=re.M))
    assert len(types) > 100
    assert types - set(CATALOGUE) - set(FORK_TYPES) <= AWAITED


def test_an_alias_is_another_name_of_a_type() -> None:
    for alias, kind in ALIASES.items():
        assert CATALOGUE[alias] is CATALOGUE[kind]


def test_each_kernel_file_is_launched() -> None:
    """By a name "stem.kernel" in layers/ or cuda/."""
    texts = [path.read_text(encoding="utf-8") for folder in ("layers", "cuda") for path in (ROOT / folder).rglob("*.py")]
    kernels = [path.stem for path in (ROOT / "cuda").glob("*.cu")]
    assert len(kernels) > 50
    assert [stem for stem in kernels if not any(re.search(rf"[\"']{stem}[.\"'_]", text) for text in texts)] == []


class Kernels(Layer):
    """A layer with GPU methods, which note what ran."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ran: list[str] = []

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ran.append("forward_cpu")

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ran.append("forward_gpu")

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.ran.append("backward_cpu")

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.ran.append("backward_gpu")


class NewForward(Kernels):
    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ran.append("new forward_cpu")


class NewBackward(Kernels):
    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        self.ran.append("new backward_cpu")


class NewKernel(NewForward):
    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ran.append("new forward_gpu")


class NewSetup(Kernels):
    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Nothing."""


class ForwardKernel(Layer):
    """Backward has no GPU method at all."""

    setup = Kernels.setup
    forward_cpu, forward_gpu, backward_cpu = Kernels.forward_cpu, Kernels.forward_gpu, Kernels.backward_cpu


@pytest.mark.parametrize(
    ("kind", "ran"),
    [
        (Kernels, ["forward_gpu", "backward_gpu"]),
        (NewSetup, ["forward_gpu", "backward_gpu"]),
        (NewKernel, ["new forward_gpu", "backward_gpu"]),
        (NewForward, ["new forward_cpu", "backward_cpu"]),
        (NewBackward, ["forward_cpu", "new backward_cpu"]),
        (ForwardKernel, ["forward_gpu", "backward_cpu"]),
    ],
)
def test_a_class_that_overrides_a_cpu_method_alone_runs_on_the_cpu(
    kind: type[Layer], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minicaffe.mode._gpu", True)
    layer: Any = kind(caffe_pb2.LayerParameter(name="a", type="A"))
    layer.setup([], [])
    layer.forward([], [])
    layer.backward([], [], [])
    assert layer.ran == ran
    monkeypatch.setattr("minicaffe.mode._gpu", False)
    layer.forward([], [])
    layer.backward([], [], [])
    assert not any("gpu" in method for method in layer.ran[2:])


def test_a_built_in_class_has_the_gpu_methods_of_its_cpu_methods() -> None:
    assert [kind for kind, layer in BUILT_IN.items() if not gpu_methods_apply(layer)] == []
