from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from extras import require
from golden import GOLDEN, cases, run_case
from layer_case import LayerCase
from recordings import SHARED, needs

import minicaffe
from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.formats.source import LayerSource, Place
from minicaffe.layers.forks.ctpn import TextProposal
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.proposal.proposal_target import ProposalTarget
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.layers.python import python
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2
from minicaffe.scaling.batch.rules import Rules


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
    """What a test imports from an allowed folder is forgotten after it."""
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in python.allowed_folders:
            del sys.modules[name]


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


class Forward(minicaffe.Layer):
    """Without a backward."""

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data


def test_a_layer_without_backward_stops_a_gradient_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    minicaffe.register("Forward", Forward)
    case = LayerCase(layer("any", "Forward"), np.zeros((2, 3)))
    case.forward()
    with pytest.raises(NotImplementedError, match="Forward has no backward; if none is to run, give the class"):
        case.backward(np.ones((2, 3)))
    case.backward(propagate_down=[False])
    monkeypatch.setattr(Forward, "index_bottoms", (0,))
    assert not case.backward(np.ones((2, 3)))[0].any()
    monkeypatch.setattr(Forward, "index_bottoms", ())
    monkeypatch.setattr(Forward, "has_gradient", False)
    case.backward(np.ones((2, 3)))


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
    monkeypatch.setattr("minicaffe.layers.python.python._allowed", set())  # where a script has run, every module is allowed
    with pytest.raises(
        LayerError,
        match=r'--allow-module hostile_module, or minicaffe.allow_module\("hostile_module"\), lets it be imported',
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


@needs(SHARED / "models")
def test_every_python_layer_of_the_published_nets_is_built_in() -> None:
    import re

    found = set()
    for path in (SHARED / "models").rglob("*"):
        if path.suffix in (".prototxt", ".pt"):
            text = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
            found |= set(re.findall(r"module:\s*['\"]([\w.]+)['\"]\s*layer:\s*['\"](\w+)['\"]", text))
    assert found <= set(python.STAND_INS)


LAYER = """
import minicaffe
{imports}

class Mine(minicaffe.Layer):
    def setup(self, bottom, top):
        {more}
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data + 1
"""
MARK = "import pathlib; pathlib.Path('{}.ran').touch()\n"


def mine(imports: str = "", more: str = "pass") -> str:
    return LAYER.format(imports=imports, more=more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a layer, and modules beside it that must not run."""
    monkeypatch.chdir(tmp_path)
    for name in ("h5py", "numpy", "yaml", "helper"):
        (tmp_path / f"{name}.py").write_text(MARK.format(name))
    return tmp_path


def run(module: str) -> None:
    LayerCase(layer(module, "Mine"), np.zeros((2, 3))).forward()


def test_a_module_of_a_folder_is_imported_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("hdf5")
    monkeypatch.delitem(sys.modules, "yaml", raising=False)
    (folder / "of_a_folder.py").write_text(mine("import numpy\nimport yaml", "import h5py"))
    path = list(sys.path)
    minicaffe.allow_module("of_a_folder", folder)
    run("of_a_folder")
    assert sys.path == path
    assert not list(folder.glob("*.ran"))


def test_a_module_beside_it_must_be_allowed_too(folder: Path) -> None:
    (folder / "with_helper.py").write_text(mine("import helper"))
    minicaffe.allow_module("with_helper", folder)
    missing = rf"No module named 'helper'; it lies in {folder}: --allow-module helper lets it be imported too"
    with pytest.raises(LayerError, match=missing):
        run("with_helper")
    assert not list(folder.glob("*.ran"))
    minicaffe.allow_module("helper", folder)
    run("with_helper")
    assert (folder / "helper.ran").exists()


@pytest.mark.parametrize("init", [True, False])
def test_a_package_has_its_own_modules(folder: Path, init: bool) -> None:
    """As py-faster-rcnn's lib: a module of a package imports from its package, and from another that is allowed."""
    for name in ("a_package/inner", "b_package"):
        (folder / name).mkdir(parents=True)
        if init:
            (folder / name / "__init__.py").write_text("")
    (folder / "a_package" / "config.py").write_text("value = 3")
    (folder / "b_package" / "config.py").write_text("value = 4")
    imports = "from ..config import value\nfrom a_package import config\nfrom b_package.config import value as other"
    (folder / "a_package" / "inner" / "layers.py").write_text(mine(imports, "assert (value, other, config.value) == (3, 4, 3)"))
    minicaffe.allow_module("a_package.inner.layers", folder)
    with pytest.raises(LayerError, match=r"No module named 'b_package'; it lies in .*--allow-module b_package"):
        run("a_package.inner.layers")
    minicaffe.allow_module("b_package", folder)
    run("a_package.inner.layers")


def test_a_folder_of_data_does_not_hide_an_installed_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "installed").mkdir()
    (folder / "installed" / "of_data.py").write_text(mine())
    (folder / "of_data").mkdir()
    monkeypatch.syspath_prepend(str(folder / "installed"))
    minicaffe.allow_module("of_data", folder)
    run("of_data")


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.parametrize("init", ["raise SystemExit('another Caffe')", None])
def test_a_module_of_the_users_caffe(folder: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool, init: str | None) -> None:
    """As NVIDIA/caffe's caffe.layers.detectnet.clustering, in a package that has names of ours; caffe itself is minicaffe."""
    home = folder / "home"
    package = home / "caffe" / "layers"
    (package / "below").mkdir(parents=True)
    if init is not None:
        for place in (home / "caffe", package):
            (place / "__init__.py").write_text(init)
    (package / "roi.py").write_text("value = 3")  # minicaffe has a layers/roi
    (package / "below" / "deep.py").write_text(
        mine("import caffe, caffe.io\nfrom caffe.layers.roi import value", "assert (caffe, value) == (minicaffe, 3)")
        + "    assert caffe.io.__name__ == 'minicaffe.pycaffe.io'\n"
    )
    if on_path:
        monkeypatch.syspath_prepend(str(home))
    minicaffe.allow_module("caffe.layers.below.deep", None if on_path else home)
    run("caffe.layers.below.deep")
    assert sys.modules["caffe.layers.below.deep"].__file__ == str(package / "below" / "deep.py")
    assert sys.modules["minicaffe.layers.roi"].__name__ == "minicaffe.layers.roi"
    minicaffe.allow_module("caffe.layers.shape")  # the user has none, and minicaffe's is no Python layer
    with pytest.raises(LayerError, match=r"No module named 'caffe.layers.shape': the files of that name are minicaffe's own"):
        run("caffe.layers.shape")


def test_a_folder_without_init_goes_before_one_of_the_checkout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for known in [known for known in sys.modules if known.partition(".")[0] == "layers"]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.syspath_prepend(str(ROOT))
    (folder / "layers").mkdir()
    (folder / "layers" / "with_us.py").write_text(mine())
    minicaffe.allow_module("layers.with_us")
    with pytest.raises(
        LayerError, match=r"files of that name are minicaffe's own; put layers/with_us\.py .* layers/__init__\.py"
    ):
        run("layers.with_us")
    minicaffe.allow_module("layers.with_us", folder)
    run("layers.with_us")
    assert sys.modules["layers.with_us"].__file__ == str(folder / "layers" / "with_us.py")


def test_a_class_in_the_init_of_caffe_layers(folder: Path) -> None:
    (folder / "caffe" / "layers").mkdir(parents=True)
    (folder / "caffe" / "layers" / "__init__.py").write_text(mine())
    minicaffe.allow_module("caffe.layers", folder)
    with pytest.raises(LayerError, match=r"move the class from caffe/layers/__init__\.py to caffe/layers/custom\.py and write"):
        run("caffe.layers")
    (folder / "caffe" / "layers" / "__init__.py").rename(folder / "caffe" / "layers" / "custom.py")
    minicaffe.allow_module("caffe.layers.custom", folder)
    run("caffe.layers.custom")


def test_a_module_that_imports_caffe_needs_it(folder: Path) -> None:
    for known in [known for known in sys.modules if known.partition(".")[0] == "caffe"]:
        del sys.modules[known]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_CaffeFinder"]
    (folder / "wants_caffe.py").write_text(mine("import caffe", "assert caffe is minicaffe"))
    minicaffe.allow_module("wants_caffe", folder)
    with pytest.raises(LayerError, match=r"No module named 'caffe'; minicaffe\.serve_as_caffe\(\) before it lets"):
        run("wants_caffe")
    minicaffe.serve_as_caffe()
    run("wants_caffe")


def test_workers_have_caffe(folder: Path) -> None:
    """A Ray worker is a process of its own, which applies the rules of the one that started the run."""
    (folder / "with_caffe.py").write_text(mine("import caffe", "assert caffe is minicaffe"))
    Rules(minicaffe.get_num_threads(), gpu=False, modules=("with_caffe",)).apply()
    run("with_caffe")


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("path", "module", "name"),
    [
        (ROOT, "layers.text_proposal_layer", "ProposalLayer"),
        (ROOT / "minicaffe", "layers.text_proposal_layer", "ProposalLayer"),
        (ROOT / "minicaffe", "layers.loss.softmax", "Softmax"),
        (ROOT / "layers", "loss", "Softmax"),
    ],
)
@pytest.mark.parametrize("allowed", [None, python.ANY, "the module"])
def test_our_own_files_have_one_name(
    path: Path, module: str, name: str, allowed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known in [known for known in sys.modules if known.partition(".")[0] in ("layers", "loss")]:
        monkeypatch.delitem(sys.modules, known)
    monkeypatch.syspath_prepend(str(path))
    python._allowed.clear()
    if allowed is not None:
        minicaffe.allow_module(module if allowed == "the module" else allowed)
    param = caffe_pb2.LayerParameter(name="x", type="Python")
    param.python_param.module, param.python_param.layer = module, name
    if module.endswith("text_proposal_layer") and allowed != "the module":
        assert type(minicaffe.layers.create(param)) is TextProposal
    else:
        wanted = "is not built in" if allowed is None else f"No module named '{module}': the files of that name are minicaffe's"
        with pytest.raises(LayerError, match=wanted):
            minicaffe.layers.create(param)
    assert not {"layers", "loss"} & {known.partition(".")[0] for known in sys.modules}


@pytest.mark.parametrize("command", [[sys.executable, "-m", "minicaffe"], [sys.executable, "-c", "import sys; del sys.path[0]\n"
    "from minicaffe.cli import main; main()"]])  # fmt: skip
def test_the_command_line_imports_that_module_alone(folder: Path, command: list[str]) -> None:
    require("hdf5")
    (folder / "numpy.py").unlink()  # which `python -m` itself would take
    (folder / "of_a_command.py").write_text(mine(more="import h5py, yaml"))
    (folder / "net.prototxt").write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }\n'
        'layer { name: "m" bottom: "x" top: "y" type: "Python" python_param { module: "of_a_command" layer: "Mine" } }\n'
    )
    done = subprocess.run([*command, "summary", "net.prototxt", "--allow-module", "of_a_command"], cwd=folder, timeout=60,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(folder.glob("*.ran"))
