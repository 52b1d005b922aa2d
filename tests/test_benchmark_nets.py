"""The benchmarks' nets are the published ones: by their numbers, and layer by layer where those prototxts are at hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from recordings import REASON, SHARED

from minicaffe import TEST, Net
from minicaffe.formats.prototxt import parse_net
from minicaffe.proto import caffe_pb2
from minicaffe.tracing.summary import summarize

ROOT = Path(__file__).parents[1]
WILD = SHARED / "wild"
PUBLISHED = {
    "mobilenet_ssd": "chuanqi305__MobileNet-SSD/voc/MobileNetSSD_deploy.prototxt",
    "shufflenet": "farmingyard__ShuffleNet/shufflenet_1x_g3_deploy.prototxt",
    "densenet121": "shicai__DenseNet-Caffe/DenseNet_121.prototxt",
    "squeezenet": "forresti__SqueezeNet/SqueezeNet_v1.0/deploy.prototxt",
    "segnet": "alexgkendall__SegNet-Tutorial/Models/segnet_inference.prototxt",
}


@pytest.fixture
def architectures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks._architectures")


@pytest.mark.parametrize(
    ("name", "millions", "multiply_adds"),
    [
        ("mobilenet", 4.2, 569e6),  # of the paper, table 8
        ("mobilenet_ssd", 5.8, 1.15e9),
        ("shufflenet", 1.8, 133e6),
        ("densenet121", 8.0, 2.85e9),
        ("squeezenet", 1.25, 0.86e9),
        ("segnet", 29.4, 107e9),
        ("resnet50", 25.6, 3.8e9),  # of the paper, table 1
    ],
)
def test_parameters_and_multiply_adds(architectures: ModuleType, name: str, millions: float, multiply_adds: float) -> None:
    summary = summarize(Net(parse_net(getattr(architectures, name)()), TEST))
    assert summary.parameters / 1e6 == pytest.approx(millions, rel=0.03)
    assert summary.multiply_adds == pytest.approx(multiply_adds, rel=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_same_layers_as_the_published_prototxt(architectures: ModuleType, name: str) -> None:
    """Types, shapes, parameters and multiply-adds of all layers, in their order; Splits, whose order follows names, apart."""
    file = WILD / PUBLISHED[name]
    if not file.exists():
        pytest.skip(REASON)
    ours = parse_net(getattr(architectures, name)())
    theirs = parse_net(file.read_text())
    if theirs.param.layer[0].type == "DenseImageData":
        theirs.param.layer[0].CopyFrom(ours.param.layer[0])
    for shape in [
        *theirs.param.input_shape,
        *(layer.input_param.shape[0] for layer in theirs.param.layer[:1] if layer.type == "Input"),
    ]:
        shape.dim[0] = 1
    if theirs.param.input_dim:
        theirs.param.input_dim[0] = 1
    assert listed(ours.param) == listed(theirs.param)


def listed(param: caffe_pb2.NetParameter) -> list[tuple[object, ...]]:
    summary = summarize(Net(param, TEST))
    return [(each.type, each.shapes, each.parameters, each.multiply_adds) for each in summary.layers if each.type != "Split"]
