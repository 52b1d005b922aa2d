"""The reader's law: one type, one file of its name, one test file; and class facts that the net can rely on."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from recordings import SHARED, needs

import minicaffe
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


def snake(kind: str) -> str:
    """SmoothL1LossOHEM -> smooth_l1_loss_ohem, ReLU -> relu, PSROIPooling -> psroi_pooling."""
    known = {
        "Convolution3D": "convolution3d",
        "DecodeBBox": "decode_bbox",
        "Deconvolution3D": "deconvolution3d",
        "NegReLU": "neg_relu",
        "Pooling3D": "pooling3d",
        "ReLU": "relu",
        "ReLU6": "relu6",
        "PReLU": "prelu",
        "RoIData": "roi_data",
        "SeLu": "selu",
        "TanH": "tanh",
    }
    words = re.findall(r"[A-Z]+[0-9]*(?![a-z])|[A-Z][a-z]*[0-9]*[a-z]*", kind)
    return known.get(kind) or "_".join(words).lower()


@pytest.mark.parametrize(
    ("kind", "stem"),
    [
        ("SmoothL1LossOHEM", "smooth_l1_loss_ohem"),
        ("PSROIPooling", "psroi_pooling"),
        ("ROIAlign", "roi_align"),
        ("InnerProduct", "inner_product"),
        ("Im2col", "im2col"),
        ("LRN", "lrn"),
        ("LSTMUnit", "lstm_unit"),
        ("BoxAnnotatorOHEM", "box_annotator_ohem"),
    ],
)
def test_snake(kind: str, stem: str) -> None:
    assert snake(kind) == stem


@pytest.mark.parametrize("kind", KINDS)
def test_file_and_test_file(kind: str) -> None:
    assert Path(inspect.getfile(BUILT_IN[kind])).name == f"{snake(kind)}.py"
    assert (ROOT / "layers" / f"{snake(kind)}.py").is_file()
    assert (ROOT / "tests" / "layers" / f"test_{snake(kind)}.py").is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_class(kind: str) -> None:
    layer = BUILT_IN[kind]
    assert issubclass(layer, Layer)
    assert layer.type == kind
    assert layer.__name__ == kind


@pytest.mark.parametrize("kind", KINDS)
def test_docstrings(kind: str) -> None:
    """The first line is what `minicaffe layers` shows; bottoms and tops are described."""
    layer = BUILT_IN[kind]
    text = layer.__doc__ or ""
    assert text.splitlines()[0].strip(), "the first line says what the layer does"
    assert re.search(r"\bbottoms?\b", text, re.IGNORECASE), "the docstring names the bottoms"
    assert re.search(r"\btops?\b", text, re.IGNORECASE), "the docstring names the tops"
    module = inspect.getmodule(layer)
    assert module is not None
    assert module.__doc__, "the module says what it computes, and its source"


@pytest.mark.parametrize("kind", KINDS)
def test_counts(kind: str) -> None:
    layer = BUILT_IN[kind]
    bounds = []
    for count in (layer.num_bottom, layer.num_top):
        least, most = (count, count) if isinstance(count, int) else count
        assert least >= 0
        assert most is None or most >= least
        bounds.append((least, most))
    bottoms = bounds[0][1]
    assert all(i >= 0 and (bottoms is None or i < bottoms) for i in layer.index_bottoms)
    if layer.in_place:
        assert bottoms is None or bottoms >= 1
        assert bounds[1][1] is None or bounds[1][1] >= 1
    if layer.is_loss:
        assert bounds[1][1] is None or bounds[1][1] >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_counts_are_named(kind: str) -> None:
    """One bottom or top too many or too few is an error with both numbers, before setup reads anything."""
    layer = BUILT_IN[kind](caffe_pb2.LayerParameter(name="made", type=kind))
    for what, count in (("bottom", layer.num_bottom), ("top", layer.num_top)):
        least, most = (count, count) if isinstance(count, int) else count
        for wrong in {least - 1, (most if most is not None else least) + 1} - {-1}:
            if most is None and wrong > least:
                continue
            bottoms = wrong if what == "bottom" else least_bottoms(layer)
            with pytest.raises(LayerError, match=rf'{kind} layer "made": takes .*{what}.*, got {wrong}'):
                layer.connect([minicaffe.Blob()] * bottoms, [minicaffe.Blob()] * (wrong if what == "top" else 0))


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


SHARED_KERNELS = {"column_sums", "gemm", "roi_layout", "roi_widening", "rows", "sort", "updates"}
"""Kernel files of no one layer: products, sums, sorting, the solvers' updates."""


def test_a_kernel_file_has_the_name_of_a_layer_s_file() -> None:
    stems = {path.stem for path in (ROOT / "layers").rglob("*.py")}
    kernels = {path.stem for path in (ROOT / "cuda").glob("*.cu")}
    assert kernels - stems == SHARED_KERNELS


def least_bottoms(layer: Layer) -> int:
    return layer.num_bottom if isinstance(layer.num_bottom, int) else layer.num_bottom[0]


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_built_in_class_has_the_gpu_methods_of_its_cpu_methods(kind: str) -> None:
    assert gpu_methods_apply(BUILT_IN[kind])
