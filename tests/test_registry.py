"""What tools know of layer types is open to classes of the user's, and to packages by an entry point."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from extras import require

import minicaffe
from minicaffe import Blob, Error, Layer, Net, registry
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import CATALOGUE
from minicaffe.registry import Table, class_of, explains, exports, layer, torch_form
from minicaffe.tracing.explanations.explanation import FunctionExplanation

PACKAGE = Path(__file__).parent / "packages"
ReLU = CATALOGUE["ReLU"]
TEXT = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "mine" type: "Mine" bottom: "x" top: "y" }
"""


def mine(base: type[Layer] = Layer) -> type[Layer]:
    @layer("Mine")
    class Mine(base):  # type: ignore[misc, valid-type]
        num_bottom = num_top = 1

        def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
            top[0].reshape(bottom[0].shape)

        def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
            top[0].data[...] = 2 * bottom[0].data

    return Mine


def net_with_mine() -> Net:
    net = Net(parse_net(TEXT), minicaffe.TEST)
    net.blobs["x"].data[...] = np.arange(6).reshape(2, 3)
    return net


def test_a_class_of_the_users_joins_each_tool_by_a_decorator(tmp_path: Path) -> None:
    require("onnx")
    kind, net = mine(), net_with_mine()
    with pytest.raises(Error, match=r'explain does not cover Mine \(layer "mine"\)'):
        minicaffe.explain(net, "mine", (1, 1))
    with pytest.raises(Error, match='Mine layer "mine": this layer has no ONNX form'):
        minicaffe.export_onnx(net, tmp_path / "net.onnx")

    @explains(kind)
    def explained(case: Any, at: Any) -> FunctionExplanation:
        return FunctionExplanation(formula="y = 2 x", computed=2 * float(case.x[at]), **case.named(at))

    @exports(kind)
    def exported(g: Any, layer: Any, bottom: Any, top: Any) -> list[str]:
        return [g("Mul", bottom[0], 2.0)]

    assert minicaffe.explain(net, "mine", (1, 1)).agrees
    with pytest.raises(Error, match="explain does not cover the gradients of Mine"):
        minicaffe.explain(net, "mine", (1, 1), backward=True)
    minicaffe.export_onnx(net, tmp_path / "net.onnx")
    assert all(difference.agrees for difference in minicaffe.onnx_export.compare_with_net(net, tmp_path / "net.onnx"))


def test_a_torch_form_of_the_users() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")
    from minicaffe.torch import to_torch

    torch_form(mine())(lambda layer, bottom, top: lambda x: 2 * x)
    assert to_torch(net_with_mine())(torch.ones(2, 3))["y"].tolist() == [[2.0] * 3] * 2


def test_a_derived_class_has_what_says_that_it_is_for_subclasses() -> None:
    kind = mine(ReLU)
    assert ReLU in explains
    assert kind not in explains, "it may compute anything"
    table: Table[Any] = Table("a test", "minicaffe.tracing.explanations")
    table(Layer, subclasses=True)(len)
    table(ReLU, subclasses=True)(sum)
    table(kind)(max)
    assert [table.get(k) for k in (kind, ReLU, CATALOGUE["Split"])] == [max, sum, len]


def test_a_users_entry_takes_the_place_of_a_built_in_one_and_not_the_other_way() -> None:
    code = """if True:
    from minicaffe.layers import CATALOGUE
    from minicaffe.registry import exports
    @exports(CATALOGUE["ReLU"])
    def own(g, layer, bottom, top): ...
    assert exports.get(CATALOGUE["ReLU"]) is own
    assert exports.get(CATALOGUE["TanH"]).__module__ == "minicaffe.porting.onnx.functions"
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_no_layer_class_is_refused() -> None:
    with pytest.raises(Error, match=r"explain: 'ReLU' is not a layer class, one derived from minicaffe.Layer"):
        explains("ReLU")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('type: "ConvolutionDepthwise"', "DepthwiseConvolution"),
        ('type: "Python" python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" }', "Proposal"),
        ('type: "Python" python_param { module: "my" layer: "Mine" }', "Mine"),
        ('type: "Python" python_param { module: "os" layer: "Other" }', "Python"),
        ('type: "Nobody"', "Layer"),
    ],
)
def test_the_class_of_a_layer_that_is_not_set_up(text: str, name: str) -> None:
    mine()
    param = parse_net(f'layer {{ name: "a" top: "a" {text} }}').param.layer[0]
    assert class_of(param).__name__ == name


# Packages.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tests/packages installed in it, by pip and without a network."""
    pytest.importorskip("setuptools", "69", reason="pip builds the package with it")
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(command, check=True)
    return folder / "site"


USE = """
import sys, numpy as np
import minicaffe, minicaffe.onnx_export
from minicaffe.formats.prototxt import parse_net
assert "tripled" not in sys.modules, "not before it is needed"
TEXT = '''
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "t" type: "Tripled" bottom: "x" top: "y" }
'''
minicaffe.Net(parse_net(TEXT.replace("Tripled", "ReLU")), minicaffe.TEST)
assert "tripled" not in sys.modules
net = minicaffe.Net(parse_net(TEXT), minicaffe.TEST)
net.blobs["x"].data[...] = np.arange(6).reshape(2, 3)
assert net.forward()["y"].tolist() == [[0, 3, 6], [9, 12, 15]]
assert minicaffe.explain(net, "t", (1, 1)).agrees
assert minicaffe.explain(net, "t", (1, 1), backward=True).value == 3
minicaffe.export_onnx(net, "net.onnx")
assert all(difference.agrees for difference in minicaffe.onnx_export.compare_with_net(net, "net.onnx"))
assert minicaffe.summary.summarize(net).not_counted == []
"""


def run(code: str, folder: Path, path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_package_runs_explains_and_exports_its_layer(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    run(USE, tmp_path, installed)


def test_the_command_line_lists_a_package_s_layer(installed: Path, tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['layers']; from minicaffe.cli import main; main()"
    assert "Tripled" in run(code, tmp_path, installed)


def announce(folder: Path, module: str) -> None:
    info = folder / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[minicaffe.layers]\nits_layers = {module}\n")


def test_a_package_that_cannot_be_imported_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(tmp_path, "module_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    words = r'the layers of broken \(entry point "its_layers" of minicaffe.layers\) cannot be imported: ModuleNotFoundError'
    with pytest.warns(UserWarning, match=words):
        assert registry.find("Nobody") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.find("Nobody") is None
