"""Fields that minicaffe's schema lacks: left out quietly, refused, or left out with strict=False, by place and by class."""

from __future__ import annotations

import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from fork_table import HOW, use_table
from google.protobuf.unknown_fields import UnknownFieldSet

import minicaffe
from minicaffe import Layer, Net
from minicaffe.errors import Error, LayerError, PrototxtError, PrototxtWarning
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.formats.skipped import is_strict, skipping_unknown, summed_up
from minicaffe.mode import TEST, TRAIN
from minicaffe.proto import caffe_pb2
from minicaffe.registry import register, types
from minicaffe.scaling.batch.recipe import Recipe
from minicaffe.training.solvers import get_solver

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 7 dim: 7 } } }\n'
POOL = 'layer {{ name: "p" type: "Pooling" bottom: "x" top: "p"\n pooling_param {{ kernel_size: 2 stride: 2 {} }} }}\n'
HINT = "\nhint: strict=False, or --skip-unknown, leaves it out; the numbers may then be wrong"
LOUD = f"has no field fork_loud: it belongs to A's Caffe and B's Caffe, where it {HOW}"


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> None:
    use_table(monkeypatch)


def net_of(text: str, phase: int = TEST, strict: bool | None = None) -> Net:
    return Net(parse_net(INPUT + text, "net.prototxt", warn=False), phase, strict=strict)


def silent(text: str, phase: int = TEST) -> Net:
    """Return a net that is made without a warning, of its text too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return net_of(text, phase)


# By class.


@pytest.mark.parametrize(
    "field",
    [
        "fork_quiet: 3", "fork_quiet { a: 1 }", "fork_loud: 1", "fork_loud: 1.0", "fork_loud: false", "fork_loud: f",
        "nobody { }", "nobody < >", "nobody: [ ]", "nobody {\n # a comment\n }",
    ],
)  # fmt: skip
def test_what_cannot_matter_is_left_out_quietly(field: str) -> None:
    net = silent(POOL.format(field))
    assert net.skipped == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_net(INPUT + POOL.format(field))


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("fork_loud: 2", f"PoolingParameter {LOUD}"),
        ("fork_loud: 1 fork_loud: true fork_loud: 0.5", f"PoolingParameter {LOUD}"),
        ("fork_loud { }", f"PoolingParameter {LOUD}"),
        ("fork_loud: -1", f"PoolingParameter {LOUD}"),
        ("kernal_size: 2", "PoolingParameter has no field kernal_size; the nearest is kernel_size"),
        ("zzz: 0", "PoolingParameter has no field zzz"),
        ("[a.fork/more]: 0", "PoolingParameter has no field [a.fork/more]"),
    ],
)
def test_what_may_matter_is_refused(field: str, sentence: str) -> None:
    with pytest.raises(LayerError) as refused:
        net_of(POOL.format(field))
    assert str(refused.value) == f'Pooling layer "p": {sentence} (net.prototxt:3){HINT}'


def test_without_strict_the_net_computes_without_the_field() -> None:
    with pytest.warns(PrototxtWarning) as warned:
        net = net_of(POOL.format("fork_loud: 2 zzz: -1 fork_quiet: 3\n fork_loud: 3"), strict=False)
    assert [str(each.message) for each in warned] == [
        f"net.prototxt:3: PoolingParameter {LOUD}; skipped (and 1 more, the last at line 4)",
        "net.prototxt:3: PoolingParameter has no field zzz; skipped",
    ]
    assert [(f.path, f.value, f.place.line) for f in net.skipped] == [
        ("pooling_param.fork_loud", "2", 3), ("pooling_param.zzz", "- 1", 3), ("pooling_param.fork_loud", "3", 4),
    ]  # fmt: skip
    assert net.forward(x=np.ones((1, 2, 7, 7)))["p"].shape == (1, 2, 4, 4)


V1 = 'input: "x" input_dim: 1 input_dim: 2 input_dim: 7 input_dim: 7\n' + POOL.format("zzz: 1")
V1 = V1.replace("layer", "layers").replace('"Pooling"', "POOLING")


@pytest.mark.parametrize("whole", [INPUT + POOL.format("fork_loud: 2"), "net_field: 1\n" + INPUT, V1])
def test_the_bare_parameters_of_a_net_are_refused_as_its_file(whole: str, tmp_path: Path) -> None:
    file = parse_net(whole, "net.prototxt", warn=False)
    with pytest.raises(Error) as by_file:
        Net(file)
    copy = caffe_pb2.NetParameter.FromString(file.param.SerializeToString())
    for param in (file.param, copy):
        with pytest.raises(type(by_file.value), match=re.escape(str(by_file.value))):
            Net(param)
    with pytest.warns(PrototxtWarning, match="skipped"):
        net = Net(copy, strict=False)
    assert [field.name for field in net.skipped] == [field.name for field in (*file.skipped, *file.sources[-1].skipped)]
    net.save(tmp_path / "w.caffemodel")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net(net.param)
    assert not list(UnknownFieldSet(net.param)) and not any(list(UnknownFieldSet(layer)) for layer in net.param.layer)


@pytest.mark.parametrize("field", ["gpu_memory_limit: 3", "cudnn_mode: FAST", "workspace { mb: 1 }", "display_style: 2"])
def test_an_unknown_field_of_a_net_or_solver_named_after_memory_or_logging_is_noted(field: str) -> None:
    name = field.split(":", maxsplit=1)[0].split(maxsplit=1)[0]
    note = f"has no field {name}; by its name it does not concern the numbers, so it is left out"
    with pytest.warns(PrototxtWarning, match=f"net.prototxt:1: NetParameter {note}") as warned:
        assert Net(parse_net(f"{field} {INPUT}", "net.prototxt", warn=False)).skipped == []
    assert len(warned) == 1
    with pytest.warns(PrototxtWarning, match=f"s.prototxt:1: SolverParameter {note}"):
        parse_solver(field, "s.prototxt")
    with pytest.warns(PrototxtWarning, match=f"net.prototxt:3: PoolingParameter {note}$"):
        assert net_of(POOL.format(field)).skipped == []


@pytest.mark.parametrize("field", ["mem_share: true", "display: 1", "cudnn_algo_seeker: FINDEX", "debug_info: true"])
def test_such_a_field_of_a_layer_is_noted_once_for_all_layers(field: str) -> None:
    name = field.partition(":")[0]
    layers = [f'layer {{ name: "{i}" type: "ReLU" bottom: "x" top: "x" {field} }}\n' for i in range(3)]
    with pytest.warns(PrototxtWarning, match=rf"LayerParameter has no field {name}; by its .* \(and 2 more, the l") as warned:
        assert Net(parse_net(INPUT + "".join(layers), "net.prototxt", warn=False)).skipped == []
    assert len(warned) == 1


@pytest.mark.parametrize(("block", "field"), [("net", "share_blobs: true"), ("solver", "log_dir: 'x'")])
def test_names_of_sharing_and_logging_are_noted(block: str, field: str) -> None:
    with pytest.warns(PrototxtWarning, match="by its name it does not concern the numbers"):
        Net(parse_net(f"{field} {INPUT}", warn=False)) if block == "net" else parse_solver(field, "s.prototxt")


@pytest.mark.parametrize("field", ["mem_cells: 9", "memory_size: 9", "memory_dim: 2", "workspac: 2", "log_scale: true"])
def test_other_unknown_fields_of_a_layer_are_refused(field: str) -> None:
    with pytest.raises(LayerError, match=f"PoolingParameter has no field {field.partition(':')[0]}"):
        net_of(POOL.format(field))


@pytest.mark.parametrize("field", ["memory_data_param { batch_size: 2 }", "memorable: 2"])
def test_other_unknown_fields_of_a_net_are_refused(field: str) -> None:
    with pytest.raises(PrototxtError, match="NetParameter has no field memor"):
        Net(parse_net(f"{field} {INPUT}", warn=False))


# By place.


def test_layers_that_are_not_made_do_not_matter() -> None:
    rule = POOL.format("fork_loud: 2").replace("pooling_param", "include { phase: TRAIN } pooling_param")
    assert silent(rule).skipped == []
    with pytest.raises(LayerError, match="fork_loud"):
        net_of(rule, TRAIN)
    staged = rule.replace("phase: TRAIN", 'stage: "deploy"')
    assert silent(staged).skipped == []
    with pytest.raises(LayerError, match="fork_loud"):
        Net(parse_net(INPUT + staged, warn=False), TEST, stages=["deploy"])


@pytest.mark.parametrize("kind", ["include", "exclude"])
def test_an_unknown_field_of_a_rule_matters_also_to_a_layer_that_it_leaves_out(kind: str) -> None:
    rule = POOL.format("").replace("pooling_param", f'{kind} {{ stge: "a" }} pooling_param')
    with pytest.raises(PrototxtError, match=r"net.prototxt:3:12: NetStateRule has no field stge; the nearest is stage"):
        net_of(rule)
    with pytest.warns(PrototxtWarning, match="NetStateRule has no field stge") as warned:
        assert len(net_of(rule, strict=False).skipped) == len(warned) == 1


def test_the_block_of_another_type_means_nothing() -> None:
    layer = 'layer {{ name: "r" type: "ReLU" bottom: "x" top: "r" {} }}'
    assert silent(layer.format("pooling_param { fork_loud: 2 zzz: 1 }")).skipped == []
    for block in ("relu_param", "transform_param", "param"):
        with pytest.raises(LayerError, match=r'ReLU layer "r": \w+ has no field fork_loud'):
            net_of(layer.format(f"{block} {{ fork_loud: 2 }}"))


def test_a_whole_block_of_another_type_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(types, "ForkPooling", Layer)
    layer = 'layer {{ name: "r" type: "ReLU" bottom: "x" top: "r" {} }}'
    assert silent(layer.format("fork_pooling_param { a: 1 }")).skipped == []
    for field in ("forkpooling: 1", "nobody_param { a: 1 }", "fork_loud { a: 1 }"):
        with pytest.raises(LayerError, match=r"LayerParameter has no field"):
            net_of(layer.format(field))


def test_a_block_of_its_own_type_matters() -> None:
    class Doubled(Layer):
        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].shape)

    register("Doubled", Doubled)
    layer = 'layer {{ name: "d" type: "Doubled" bottom: "x" top: "d" {} }}'
    for field in ("doubled_param { by: 3 }", "pooling_param { fork_loud: 2 }"):  # a class of the user's may read any block
        with pytest.raises(LayerError, match='Doubled layer "d": '):
            net_of(layer.format(field))


def test_a_class_of_the_users_may_read_a_block_that_minicaffe_lacks() -> None:
    class Times(Layer):
        param_block = ("times_param",)

        def setup(self, bottom, top):
            assert self.source is not None
            self.factor = float(re.findall("factor : ([0-9.]+)", self.source.skipped[0].value)[0])

        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].shape)

        def forward(self, bottom, top):
            top[0].data[...] = bottom[0].data * self.factor

    register("Times", Times)
    layer = 'layer {{ name: "t" type: "Times" bottom: "x" top: "t" times_param {{ factor: 2.5 }} {} }}'
    net = silent(layer.format(""))
    assert (net.forward(x=np.ones((1, 2, 7, 7)))["t"] == 2.5).all()
    with pytest.raises(LayerError, match="LayerParameter has no field other_param"):
        net_of(layer.format("other_param { a: 1 }"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('layers { name: "p" type: POOLING bottom: "x" top: "p" pooling_param { kernel_size: 2 fork_loud: 2 } }',
         r'Pooling layer "p": PoolingParameter has no field fork_loud.* \(net.prototxt:3\)'),
        ('layers { name: "p" type: POOLING bottom: "x" top: "p" fork_loud: 2 pooling_param { kernel_size: 2 } }',
         r'Pooling layer "p": V1LayerParameter has no field fork_loud'),
        ('layers { layer { name: "p" type: "pool" kernelsize: 2 fork_loud: 2 } bottom: "x" top: "p" }',
         r'Pooling layer "p": V0LayerParameter has no field fork_loud'),
        ('layers { layer { name: "q" type: "padding" pad: 1 fork_loud: 2 } bottom: "x" top: "q" }\n'
         'layers { layer { name: "p" type: "pool" kernelsize: 2 } bottom: "q" top: "p" }',
         "net.prototxt:3:51: V0LayerParameter has no field fork_loud"),
    ],
)  # fmt: skip
def test_older_generations(text: str, message: str) -> None:
    before = 'input: "x"\ninput_dim: 1 input_dim: 2 input_dim: 7 input_dim: 7\n'
    file = parse_net(before + text, "net.prototxt", warn=False)
    with pytest.raises(Error, match=message):
        Net(file)
    with pytest.warns(PrototxtWarning, match="fork_loud"):
        assert len(Net(file, strict=False).skipped) == 1
    other = before + 'layers { name: "r" type: RELU bottom: "x" top: "r" pooling_param { fork_loud: 2 } }'
    assert Net(parse_net(other, warn=False)).skipped == []


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("fork_loud: 2", f"net.prototxt:2:1: NetParameter {LOUD}\nhint: strict=False"),
        ("force_backwards: true", "has no field force_backwards; the nearest is force_backward"),
        ('bottom: "x"', "has no field bottom: it belongs in a layer { ... }"),
    ],
)
def test_fields_of_the_net(field: str, message: str) -> None:
    with pytest.raises(PrototxtError, match=re.escape(message)):
        net_of(field)
    with pytest.warns(PrototxtWarning, match="; skipped"):
        assert [f.path for f in net_of(field, strict=False).skipped] == [field.partition(":")[0]]
    assert silent("fork_quiet: 2").skipped == []


# Solvers, and everything else that makes nets.


def write(folder: Path, solver: str = "", layer: str = "") -> Path:
    (folder / "net.prototxt").write_text(INPUT + POOL.format(layer))
    path = folder / "solver.prototxt"
    path.write_text(f'net: "net.prototxt"\nbase_lr: 0.1 lr_policy: "fixed" max_iter: 1\n{solver}\n')
    return path


def test_a_solver_is_refused_for_its_own_field(tmp_path: Path) -> None:
    path = write(tmp_path, "fork_loud: 2")
    for make in (get_solver, minicaffe.SGDSolver):
        with pytest.raises(PrototxtError) as refused:
            make(path)
        assert str(refused.value) == f"{path}:3:1: SolverParameter {LOUD}\n  fork_loud: 2\n  ^{HINT}"
        with pytest.warns(PrototxtWarning, match=r"solver.prototxt:3: SolverParameter has no field fork_loud") as warned:
            make(path, strict=False)
        assert len(warned) == 1
    write(tmp_path, "fork_quiet: 2 fork_loud: false")
    get_solver(path)


def test_a_solver_is_refused_for_a_net_inside_it(tmp_path: Path) -> None:
    path = tmp_path / "solver.prototxt"
    path.write_text('base_lr: 0.1 lr_policy: "fixed"\nnet_param {\n' + INPUT + POOL.format("zzz: 2") + "}")
    with pytest.raises(PrototxtError, match=r"solver.prototxt:5:\d+: PoolingParameter has no field zzz"):
        get_solver(path)


def test_a_solvers_nets(tmp_path: Path) -> None:
    path = write(tmp_path, "test_iter: 1 test_interval: 1", "fork_loud: 2")
    with pytest.raises(LayerError, match='Pooling layer "p": PoolingParameter has no field fork_loud'):
        get_solver(path)
    with pytest.warns(PrototxtWarning) as warned:
        solver = get_solver(path, strict=False)
    assert len(solver.net.skipped) == len(solver.test_nets[0].skipped) == 1 and len(warned) == 2


def test_other_makers_of_nets(tmp_path: Path) -> None:
    write(tmp_path, layer="fork_loud: 2")
    path = tmp_path / "net.prototxt"
    Net(parse_net(INPUT)).save(tmp_path / "net.caffemodel")
    for make in (minicaffe.Classifier, minicaffe.Detector):
        with pytest.raises(LayerError, match="fork_loud"):
            make(path, tmp_path / "net.caffemodel")
        with pytest.warns(PrototxtWarning, match="fork_loud"):
            assert make(path, tmp_path / "net.caffemodel", strict=False).skipped
    with pytest.raises(LayerError, match="fork_loud"):
        minicaffe.detection.load(path)
    with pytest.warns(PrototxtWarning, match="fork_loud"), pytest.raises(Error, match="a detector's inputs"):
        minicaffe.detection.load(path, strict=False)  # it is no detector
    recipe = Recipe(str(path), path.read_text(), strict=None)
    with pytest.raises(LayerError, match="fork_loud"):
        recipe.pipeline({})
    with pytest.raises(Error, match="a detector's inputs"):
        pickle.loads(pickle.dumps(Recipe(str(path), path.read_text(), strict=False))).pipeline({})


def test_a_default_for_a_while(tmp_path: Path) -> None:
    write(tmp_path, layer="fork_loud: 2 zzz: 1")
    path = tmp_path / "net.prototxt"
    with pytest.warns(PrototxtWarning), skipping_unknown() as found:
        Net(path)
        Net(path)
        assert not is_strict(None) and is_strict(True)
        with pytest.raises(LayerError):
            Net(path, strict=True)
    assert summed_up(found) == (
        f"left out, though the numbers may depend on them: PoolingParameter.fork_loud ({path}:3),"
        f" PoolingParameter.zzz ({path}:3)"
    )
    with pytest.raises(LayerError):
        Net(path)


def test_a_built_net_is_not_judged_again() -> None:
    with pytest.warns(PrototxtWarning):
        net = net_of(POOL.format("fork_loud: 2"), strict=False)
    assert Net(net.param).skipped == []
