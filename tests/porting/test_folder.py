"""The report on an old model's folder: what each file is, which weights fit, what it never does."""

from __future__ import annotations

import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detector_nets import BLOB, MTCNN, ULTRA_FACE, pooled, reshaped
from extras import require
from own_anchors import known, write_own, write_repository  # noqa: F401 (a fixture)
from PIL import Image

from minicaffe import TEST, Error, Net
from minicaffe.cli import main
from minicaffe.cli.port import TRIALS, Case, try_all
from minicaffe.errors import install, pasted
from minicaffe.formats.weights import write_binaryproto
from minicaffe.porting.folder import Report, look, matching, page, scan, steps, text
from minicaffe.rng import set_random_seed

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
SCENE = pasted(str(SHAPES / "scene.png"))
"""As commands show it: quoted if the repository's path has spaces."""
NET = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 10 dim: 12 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "%s" bottom: "conv" top: "relu" }
layer { name: "ip" type: "InnerProduct" bottom: "relu" top: "ip"
  inner_product_param { num_output: %d weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
TRAIN = """name: "small"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "/data/lmdb" batch_size: 2 }
  transform_param { mean_value: 104 mean_value: 117 mean_value: 123 scale: 0.5 crop_size: 10 mean_file: "mean.binaryproto" } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
"""
V1 = """input: "data" input_dim: 1 input_dim: 3 input_dim: 6 input_dim: 7
layers { name: "pool" type: POOLING bottom: "data" top: "pool" pooling_param { kernel_size: 2 } }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one of everything."""
    root = tmp_path / "old model"
    (root / "sub").mkdir(parents=True)
    set_random_seed(1)
    for name, kind, classes in (("deploy", "ReLU", 5), ("other", "ReLU", 7), ("sigmoid", "Sigmoid", 5)):
        (root / f"{name}.prototxt").write_text(NET % (kind, classes))
        if name != "other":
            Net(root / f"{name}.prototxt", TEST).save(root / f"{name}.caffemodel")
    (root / "sigmoid.prototxt").unlink()
    (root / "train_val.prototxt").write_text(TRAIN)
    (root / "sub" / "v1.prototxt").write_text(V1)
    (root / "broken.prototxt").write_text(NET.replace("kernel_size", "kernel_sise") % ("ReLU", 5))
    (root / "solver.prototxt").write_text('net: "nets/elsewhere.prototxt"\nbase_lr: 0.1\nmax_iter: 70\n')
    write_binaryproto(root / "mean.binaryproto", np.full((1, 3, 4, 5), [[[[1]], [[2]], [[3]]]], np.float32))
    (root / "synset.txt").write_text("cat\ndog\ncow\nhen\nfox\n")
    (root / "demo.py").write_text("import caffe\nraise SystemExit('it was run')\nmean_value = [104, 117, 123]\n")
    (root / "train.log").write_text("I1121 03:09:41.2 2001 solver.cpp:1] Iteration 0, loss = 2.5\n")
    (root / "pointer.caffemodel").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    (root / "cut.caffemodel").write_bytes((root / "deploy.caffemodel").read_bytes()[:-9])
    (root / "empty.prototxt").write_bytes(b"")
    (root / "link").symlink_to("/etc/passwd")
    Image.new("RGB", (14, 11)).save(root / "photo.jpg")
    return root


def said(report: Report) -> dict[str, tuple[str, str]]:
    return {item.path: (item.kind, item.problem or item.says) for item in report.items}


def test_what_each_file_is(folder: Path) -> None:
    found = said(look(folder))
    assert found["deploy.prototxt"] == ("net", "5 layers, inputs data 1x3x10x12")
    assert found["sub/v1.prototxt"] == ("net", "V1, 2 layers, inputs data 1x3x6x7")
    assert found["train_val.prototxt"] == ("net", "2 layers, reads data by Data")
    assert found["solver.prototxt"] == ("solver", "SGD, 70 iterations, net nets/elsewhere.prototxt")
    assert found["deploy.caffemodel"][1].startswith("2 layers with weights, 1,717 values; written by: ")
    assert found["mean.binaryproto"] == ("mean", "an image of (1, 3, 4, 5); channel means 1,2,3")
    assert found["synset.txt"] == ("class names", "5 names, the first cat")
    assert found["demo.py"] == ("script", "4 lines, which use Caffe")
    assert found["train.log"][0] == "log"
    assert found["photo.jpg"] == ("image", "14 x 11 pixels")
    assert found["link"] == ("link", "a link to /etc/passwd, which is not followed")
    assert found["pointer.caffemodel"][0] == "weights"
    assert "a Git LFS pointer" in found["pointer.caffemodel"][1]
    assert "cut short" in found["cut.caffemodel"][1]
    assert found["empty.prototxt"][1] == "the file is empty"


ODD_ARRAYS = {
    "times": np.zeros(3, "M8[s]"),
    "texts": np.array(["a", "b", "c"]),
    "records": np.zeros(3, [("a", "f4")]),
    "complex": np.ones(3, complex),
}


@pytest.mark.parametrize("name", ODD_ARRAYS)
def test_an_array_that_is_no_mean(name: str, tmp_path: Path) -> None:
    array = ODD_ARRAYS[name]
    np.save(tmp_path / "a.npy", array)
    (tmp_path / "b.txt").write_text("cat\ndog\n")
    found = said(look(tmp_path))
    assert found["a.npy"] == ("other", f"an array of (3,) {array.dtype}")
    assert found["b.txt"] == ("class names", "2 names, the first cat")


@pytest.mark.parametrize("shape", [(), (0,), (1, 3, 0, 2)])
def test_a_mean_file_that_is_no_image(shape: tuple[int, ...], tmp_path: Path) -> None:
    write_binaryproto(tmp_path / "mean.binaryproto", np.ones(shape, np.float32))
    assert said(look(tmp_path)) == {"mean.binaryproto": ("mean", f"a blob of shape {shape}, which is no image")}


def test_a_mean_of_nan_is_not_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "mean.npy", np.array([1, np.nan, 3]))
    report = look(tmp_path)
    assert said(report) == {"mean.npy": ("mean", "its channel means are 1,nan,3")} and not report.facts


def test_a_reader_that_fails_costs_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception, of a reader and of a net that is made."""

    def fail(*given: object, **options: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(scan, "image_size", fail)
    monkeypatch.setattr(matching, "Net", fail)
    report = look(folder)
    assert said(report)["photo.jpg"] == ("other", "RecursionError: too deep")
    assert said(report)["deploy.prototxt"] == ("net", "5 layers, inputs data 1x3x10x12")
    assert {pair.problem for pair in report.pairs if pair.net.path == "deploy.prototxt"} == {"RecursionError: too deep"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("# a comment\n\n \t\n  layer { name: 'a' type: 'ReLU' bottom: 'x' top: 'x' }\n", "net"),
        ("\n\n\t base_lr : 0.1\n", "solver"),
        ("solver.cpp:12]\n", "log"),
        ("x Iteration 3 (2 iter/s), loss = 2\n", "log"),
        ("loss = 2 Iteration 3\n", "class names"),
    ],
)
def test_texts_told_by_their_content(text: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text + "b\n" * (kind == "class names"))
    assert said(look(tmp_path))["a"][0] == kind


def test_a_text_pickle_is_no_list_of_names(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_text("(lp0\nI1\naI2\na.\n")
    assert said(look(tmp_path))["a.pkl"] == ("other", "text of 4 lines")


def test_the_report_is_short_whatever_the_files_hold(tmp_path: Path) -> None:
    blob = "y" * 25_000
    unknown = "".join(f"unknown_{i}: 1\n" for i in range(3000))
    (tmp_path / "net.prototxt").write_text(
        unknown + "".join(f"layer {{ name: 'l{i}' type: 'Input' top: 'l{i}' }}\n" for i in range(200))
    )
    data = f"layer {{ name: 'd' type: 'Data' top: 'd' transform_param {{ {'mean_value: 1.5 ' * 300} mean_file: '{blob}' }} }}\n"
    (tmp_path / "train.prototxt").write_text(data * 20)
    (tmp_path / "solver.prototxt").write_text(f"net: '{blob}'\n" + f"test_net: '{blob}'\n" * 20 + "base_lr: 1\n")
    report = look(tmp_path)
    shown = text(report)
    assert len(shown) < 100_000 and len(page(report)) < 110_000  # the files hold 1.2 MB
    assert max(map(len, shown.splitlines())) < 1200
    assert "net.prototxt:1: NetParameter has no field unknown_0" in shown
    assert "and 2,961 more unknown fields" in shown


def test_what_a_file_tells_twice_is_said_once(tmp_path: Path) -> None:
    """The facts of its data layers, its name above its notes, and no line of a prototxt in a message."""
    data = "layer { name: '%s' type: 'Data' top: 'd' transform_param { scale: %g mean_file: 'm' } new_dim: 1 }\n"
    (tmp_path / "train.prototxt").write_text(data % ("a", 0.5) + "\n" + data % ("b", 0.5) + data % ("c", 0.25))
    (tmp_path / "template.prototxt").write_text("name: 'a'\nlayer {\n  top: ${TOP}\n}\n")
    report = look(tmp_path)
    assert report.facts == [
        "mean file m (train.prototxt:1, 3, 4)",
        "scale 0.5, after the mean (train.prototxt:1, 3)",
        "scale 0.25, after the mean (train.prototxt:4)",
    ]
    assert "m, the mean file of train.prototxt:1, 3, 4" in report.missing
    notes = text(report).partition("Forks, and unsupported")[2].partition("\n\n")[0].splitlines()[1:]
    assert [line.partition(": ")[0] for line in notes] == [
        "  train.prototxt", "      train.prototxt:1", "      train.prototxt:3", "      train.prototxt:4"
    ]  # fmt: skip
    problem = said(report)["template.prototxt"][1]
    assert problem.startswith("template.prototxt:3:8: ${TOP} is a variable: ")
    assert "; hint: run that script" in problem and "\\n" not in problem and "top:" not in problem


def test_hints_have_a_number_after_the_word(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("mean 1\nscale = 'x'\n1 mean\nmean mean 2\nmeaning 3\n")
    assert look(tmp_path).facts == ["a hint, perhaps: a.py:1: mean 1", "a hint, perhaps: a.py:4: mean mean 2"]


def test_which_weights_fit(folder: Path) -> None:
    report = look(folder)
    assert [(pair.weights.path, pair.net.path) for pair in report.best] == [("deploy.caffemodel", "deploy.prototxt")]
    assert [(one.weights, one.net.path, one.task.command) for one in report.runnable] == [
        (report.best[0].weights, "deploy.prototxt", "classify")
    ]
    of_sigmoid = next(pair for pair in report.pairs if pair.weights.path == "sigmoid.caffemodel")
    assert of_sigmoid.says == "2 of 2 layers fit; BUT the trained net has Sigmoid, which this one lacks"
    others = {pair.net.path: pair.says for pair in report.pairs if pair.weights.path == "deploy.caffemodel"}
    assert others["other.prototxt"] == "1 of 2 layers fit; other shapes: ip (5x320 5 in the weights, 7x320 7 in the net)"
    assert others["train_val.prototxt"].startswith("1 layers have the same names; the net cannot be built here: it reads data")


def test_what_it_tells_and_lacks(folder: Path) -> None:
    report = look(folder)
    assert "mean 104,117,123 (train_val.prototxt:2)" in report.facts
    assert "scale 0.5, after the mean (train_val.prototxt:2)" in report.facts
    assert "crop 10 x 10 (train_val.prototxt:2)" in report.facts
    assert "a hint, perhaps: demo.py:3: mean_value = [104, 117, 123]" in report.facts
    assert "nets/elsewhere.prototxt, the net of solver.prototxt" in report.missing
    assert not any("mean.binaryproto" in one for one in report.missing)
    assert any(one.startswith("a net for sigmoid.caffemodel: with deploy.prototxt, ") for one in report.missing)
    notes = [note for item in report.items for note in item.notes]
    assert any("has no field kernel_sise; the nearest is kernel_size" in note for note in notes)


def test_the_commands_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, from where the report was made."""
    require("onnx")
    monkeypatch.chdir(tmp_path)
    report = look("old model")
    commands = [step.command for step in report.steps]
    files = "'old model/deploy.prototxt' 'old model/deploy.caffemodel'"
    rest = "--mean 104,117,123 --scale-factor 0.5 --classes 'old model/synset.txt'"
    assert commands[0] == f"minicaffe classify {files} 'old model/photo.jpg' {rest}"
    run_all(commands)
    assert {"model.onnx", "trace.html", "rescued.prototxt"} <= set(os.listdir(tmp_path))


def run_all(commands: list[str]) -> None:
    for command in commands:
        if command.startswith("pip install ") or ("to-torch" in command and find_spec("torch") is None):
            continue
        ran = CliRunner().invoke(main, shlex.split(command)[1:])
        assert ran.exit_code == 0, (command, ran.output)


def test_without_weights_and_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights, and the clone's image; what reads data gets a deploy net."""
    require("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "deploy.prototxt").write_text(NET % ("ReLU", 5))
    report = look("net")
    commands = [step.command for step in report.steps]
    assert commands[0] == f"minicaffe classify net/deploy.prototxt --random-weights {SCENE}"
    assert "weights: no .caffemodel or .caffemodel.h5; the commands use random weights" in report.missing
    assert f"an image: the commands use {SHAPES / 'scene.png'}; replace it with yours" in report.missing
    run_all(commands)
    (tmp_path / "net" / "deploy.prototxt").write_text(TRAIN)
    commands = [step.command for step in look("net").steps]
    assert commands == ["minicaffe deploy net/deploy.prototxt -o deploy.prototxt"]
    run_all(commands)
    monkeypatch.chdir(tmp_path / "net")
    assert look(".").steps[0].command == "minicaffe deploy deploy.prototxt -o deploy_2.prototxt"


GREY_SSD = """name: "grey" input: "data" input_shape { dim: 1 dim: 1 dim: 8 dim: 9 }
layer { name: "loc" type: "InnerProduct" bottom: "data" top: "loc" inner_product_param { num_output: 8 } }
layer { name: "conf" type: "InnerProduct" bottom: "data" top: "conf" inner_product_param { num_output: 6 } }
layer { name: "map" type: "Pooling" bottom: "data" top: "map" pooling_param { pool: AVE kernel_size: 8 } }
layer { name: "priors" type: "PriorBox" bottom: "map" bottom: "data" top: "priors"
  prior_box_param { min_size: 4 } }
layer { name: "out" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "priors" top: "out"
  detection_output_param { num_classes: 3 nms_param { nms_threshold: 0.45 } confidence_threshold: 0.1 } }
"""


def test_a_size_that_no_field_tells_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = 'layer { name: "d" type: "HDF5Data" top: "data" hdf5_data_param { source: "list.txt" batch_size: 2 } }\n'
    Path("train.prototxt").write_text(data + 'layer { name: "r" type: "ReLU" bottom: "data" top: "r" }')
    report = look(".")
    command = "minicaffe deploy train.prototxt --shape data=1,3,HEIGHT,WIDTH -o deploy.prototxt"
    size = "the size of the data of train.prototxt: no field tells it. Write it in place of the capitals"
    assert not report.steps and f"{size}: {command}" in report.missing
    run_all([command.replace("HEIGHT", "5").replace("WIDTH", "6")])
    assert not any(one.startswith("the size") for one in look(".").missing)


def test_a_detector_of_grey_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """detect takes colours alone; the order of boxes from random weights is not compared."""
    require("onnx")
    monkeypatch.chdir(tmp_path)
    Path("grey.prototxt").write_text(GREY_SSD)
    commands = [step.command for step in look(".").steps]
    assert commands[0] == f"minicaffe run grey.prototxt --random-weights --input {pasted(f'data={SHAPES}/scene.png')}"
    assert not any("--check" in command for command in commands)
    run_all(commands)


def test_a_fork_that_a_net_needs_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    problem = 'PriorBox layer "p": TextBoxes makes each box twice: give --fork textboxes, or Net\'s fork='
    monkeypatch.setattr(matching, "_made", lambda net, settings, fork: problem)
    Path("net.prototxt").write_text(NET % ("ReLU", 5))
    report = look(".")
    assert [step.command for step in report.steps] == ["minicaffe port . --fork textboxes"]
    assert f"a net that can be built: net.prototxt: {problem}" in report.missing
    assert look(".", fork="textboxes").steps == []


def test_text_is_read_with_its_alphabet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits are read's default; another alphabet is a file's, or the net is only run."""
    monkeypatch.chdir(tmp_path)
    for classes, command in ((11, "minicaffe read net.prototxt"), (4, "minicaffe run net.prototxt")):
        Path("net.prototxt").write_text(
            f"""input: "data" input_shape {{ dim: 1 dim: 1 dim: 8 dim: 20 }}
            layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
              convolution_param {{ num_output: {classes} kernel_h: 8 kernel_w: 4 stride: 4 }} }}
            layer {{ name: "steps" type: "Permute" bottom: "conv" top: "steps"
              permute_param {{ order: 3 order: 0 order: 1 order: 2 }} }}"""
        )
        assert look(".").steps[0].command.startswith(command)
    Path("letters.txt").write_text("a\nb\nc\n")
    command = look(".").steps[0].command
    assert command.startswith("minicaffe read net.prototxt --random-weights") and command.endswith(
        "--alphabet-file letters.txt"
    )
    run_all([command])


def test_several_nets_write_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, classes in enumerate((5, 6, 7, 8, 9), 1):
        Path(f"{number}-a.prototxt").write_text(NET % ("ReLU", classes))
    Path("0.prototxt").write_text(NET.partition('layer { name: "prob')[0] % ("ReLU", 5))
    report = look(".")
    assert [(one.net.path, one.task.command) for one in report.runnable] == [
        ("1-a.prototxt", "classify"), ("2-a.prototxt", "classify"), ("3-a.prototxt", "classify")
    ]  # fmt: skip
    written = [word for step in report.steps for word in shlex.split(step.command) if word.endswith((".py", ".html", ".onnx"))]
    assert sorted(written) == [
        f"_{number}_a_{kind}" for number in (1, 2, 3) for kind in ("model.onnx", "model.py", "trace.html")
    ]  # fmt: skip


def test_what_to_install_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "find_spec", lambda name: None if name in ("onnxruntime", "torch") else True)
    found = look(folder).steps
    kinds = [step.command.split()[1] for step in found]
    assert kinds[1:5] == ["install", "export", "install", "to-torch"]
    assert found[1].command == install("onnx")
    assert found[3].command == install("torch")


def test_a_fork_and_unknown_fields_are_in_the_commands(tmp_path: Path) -> None:
    text = NET.replace("kernel_size: 3", "kernel_size: 3 no_such_field: 1") % ("ReLU", 5)
    (tmp_path / "deploy.prototxt").write_text(text)
    commands = [step.command for step in look(tmp_path, fork="pspnet").steps if step.command.startswith("minicaffe")]
    assert len(commands) == 4 and all("--random-weights --fork pspnet --skip-unknown" in command for command in commands)


def test_whose_layers_a_net_without_weights_has(tmp_path: Path) -> None:
    segnet = 'layer { name: "bn" type: "BN" bottom: "prob" top: "bn" bn_param { scale_filler { value: 2 } } }\n'
    (tmp_path / "deploy.prototxt").write_text(NET % ("ReLU", 5) + segnet)
    rows = text(look(tmp_path)).partition("Forks, and unsupported")[2].splitlines()[1:3]
    assert rows == ["  deploy.prototxt", "      BN of SegNet: bn_param has scale_filler (bn)"]


def test_buttons_copy_the_commands(folder: Path) -> None:
    report = look(folder)
    written = page(report)
    assert written.count('<button type="button" aria-label="Copy the command: ') == len(report.steps) > 0
    assert "</code><button" in written


def test_names_of_strangers_are_one_word_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell runs nothing of them, and no option is made of a file."""
    monkeypatch.chdir(tmp_path)
    net = NET.replace('"data"', '"$(touch OWNED)"') % ("ReLU", 5)
    Path("--limit=layers=1.prototxt").write_text(net)
    Net("--limit=layers=1.prototxt", TEST).save("-w;x.caffemodel")
    Image.new("RGB", (14, 11)).save("-`id`.jpg")
    commands = [step.command for step in look(".").steps]
    assert shlex.split(commands[0])[2:] == ["./--limit=layers=1.prototxt", "./-w;x.caffemodel", "./-`id`.jpg"]
    for command in commands:  # punctuation outside quotes is a token of its own
        assert not {"$", "(", ")", ";", "`"} & set(shlex.shlex(command, posix=True, punctuation_chars="$();`"))
    assert not any(word.startswith("--limit") for command in commands for word in shlex.split(command))


def test_a_detector(tmp_path: Path) -> None:
    report = look(SHAPES)
    detects = [step.command for step in report.steps if step.why.endswith(": find objects")]
    ran = CliRunner().invoke(main, [*shlex.split(detects[1])[1:], "--draw", str(tmp_path)])
    assert "8 detections" in ran.output
    merged = [step.command for step in report.steps if "merge-bn" in step.command]
    assert len(merged) == 1 and "ssd" in merged[0], "the BatchNorms of the others use each image's statistics"


def test_the_command_and_its_trials(folder: Path, tmp_path: Path) -> None:
    require("onnx")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    out = tmp_path / "report.html"
    (folder / "<b>.txt").write_text("no\nnames/\n")
    ran = CliRunner().invoke(main, ["port", str(folder), "--run", "-o", str(out)])
    assert ran.exit_code == 0, ran.output
    assert "works: prob 1x5, all finite" in ran.output
    assert "works: the exported model as a Caffe net gives the same numbers" in ran.output
    assert "works: cut at ip; joined, it gives the same numbers" in ran.output
    source = "works: the file, with its gradients, agrees within" if find_spec("torch") else "not tried: torch is not installed"
    assert source in ran.output
    assert "it was run" not in ran.output
    written = out.read_text()
    assert written.startswith("<!DOCTYPE html>")
    start, tried, rest = written.partition("<h2>Tried</h2>")
    assert tried
    assert start + "<h2>What to do next</h2>" + rest.partition("<h2>What to do next</h2>")[2] == page(look(folder))
    assert "&lt;b&gt;.txt" in written
    assert "<b>.txt" not in out.read_text()
    assert {path: path.read_bytes() for path in before} == before


def test_trials_of_a_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut before its head; what lacks a package, or a model, is not tried."""
    require("onnx")
    report = look(SHAPES / "faster_rcnn")
    for what in ("PyTorch source", "PyTorch module"):
        monkeypatch.setitem(TRIALS, what, (("no_such_package",), TRIALS[what][1]))
    monkeypatch.setitem(TRIALS, "ONNX", ((), refused))
    found = {verdict.what: verdict for verdict in try_all(report.best, report.folder, None)}
    assert [(what, verdict.good) for what, verdict in found.items()] == [
        ("forward", True), ("ONNX", False), ("ONNX and back", None), ("PyTorch source", None), ("PyTorch module", None),
        ("cut in two", True),
    ]  # fmt: skip
    assert found["ONNX and back"].says == "no model was exported"
    assert found["PyTorch source"].says == "no_such_package is not installed"
    assert found["cut in two"].says.startswith("cut without its head; joined, it gives the same numbers (")
    report.verdicts = list(found.values())
    assert "not tried: no_such_package is not installed" in text(report)
    assert "<dd>ONNX FAILS: it has no form (" in page(report)
    assert text(report).count("test.prototxt\n      forward works: ") == 1
    assert any("cut" in step.command and "--drop-head" in step.command for step in report.steps)


def refused(case: Case) -> str:
    raise Error("it has no form")


@pytest.mark.parametrize(("name", "why"), [("file", "a file: give the"), ("nothing", "no such file: give the")])
def test_what_is_no_folder(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Error, match=why):
        look(tmp_path / name)


def test_an_empty_folder_and_one_that_leads_into_itself(tmp_path: Path) -> None:
    assert look(tmp_path).missing == ["neither a prototxt nor weights: give the folder of a model"]
    (tmp_path / "again").symlink_to(tmp_path)
    deep = tmp_path
    for _ in range(14):
        deep = deep / "d"
        deep.mkdir()
    (deep / "x.txt").write_text("a\nb\n")
    report = look(tmp_path)
    assert [item.kind for item in report.items] == ["link"]
    assert "deeper than 12 folders" in report.left_out[0]


def test_what_python_and_git_keep_is_left_out(tmp_path: Path) -> None:
    for name in ("__pycache__/scenes.cpython-311.pyc", ".git/index", "names.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("cat\ndog\n")
    items, left_out = scan.scan(tmp_path)
    assert ([item.path for item in items], left_out) == (["names.txt"], [])


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.caffemodel")
    assert look(tmp_path).items[0].problem == "no regular file: it is not opened"


def test_a_net_gets_the_means_of_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the folders around it, too, but not those of another net's."""
    monkeypatch.chdir(tmp_path)
    data = 'layer { name: "d" type: "Data" top: "data" transform_param { %s } }\n'
    told = {
        "own": "mean_value: 1 mean_value: 2.5 mean_value: 3 scale: 0.5",
        "grey/deep": "mean_value: 7",
        "none": "scale: 0.25",
        "other": "",
    }
    for folder, param in told.items():
        Path(folder).mkdir(parents=True)
        Path(folder, "deploy.prototxt").write_text((NET % ("ReLU", 5)).replace('name: "', f'name: "{folder[:2]}_'))
        Net(Path(folder, "deploy.prototxt"), TEST).save(Path(folder, "deploy.caffemodel"))
        if param:
            Path(folder, "..", "train.prototxt" if "/" in folder else f"{folder}/train.prototxt").write_text(data % param)

    def means() -> dict[str, str]:
        commands = [step.command for step in look(".").steps if " classify " in step.command]
        return {command.split()[2]: command.partition(SCENE)[2] for command in commands}

    assert means() == {
        "own/deploy.prototxt": " --mean 1,2.5,3 --scale-factor 0.5",
        "grey/deep/deploy.prototxt": " --mean 7,7,7",
        "none/deploy.prototxt": " --mean 0,0,0 --scale-factor 0.25",
        "other/deploy.prototxt": "",
    }
    missing = look(".").missing
    assert any(one.startswith("the mean and the scale of the images of other/deploy.prototxt: no file") for one in missing)
    Path("own/second.prototxt").write_text(data % "mean_value: 4")
    assert means()["own/deploy.prototxt"] == ""
    (said,) = (one for one in look(".").missing if one.startswith("which mean"))
    own = "own/second.prototxt has mean 4,4,4; own/train.prototxt has mean 1,2.5,3, factor 0.5"
    assert said == f"which mean and scale the images of own/deploy.prototxt have: {own}. Give --mean and --scale-factor"
    Path("own/second.prototxt").unlink()
    for name in ("a", "b"):
        Path("own", f"{name}.yml").write_text("TEST: { SCALES: [40] }")
    assert not any("--cfg" in one for one in look(".").missing), "a classifier has no settings"


def test_what_several_nets_lack_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = 'layer { name: "d" type: "Data" top: "data" transform_param { mean_file: "away/mean.binaryproto" } }'
    for name in ("one", "two"):
        Path(f"{name}.prototxt").write_text((NET % ("ReLU", 5)).replace('name: "', f'name: "{name}_'))
        Net(f"{name}.prototxt", TEST).save(f"{name}.caffemodel")
        Path(f"{name}_train.prototxt").write_text(f"{data}\n{data}")
    missing = look(".").missing
    assert missing[0] == "away/mean.binaryproto, the mean file of one_train.prototxt:1, 2"
    assert missing[1] == "the names of the 5 classes of one.prototxt, two.prototxt"
    assert len(missing) == 3


def test_two_nets_that_fit(folder: Path) -> None:
    shutil.copy(folder / "deploy.prototxt", folder / "again.prototxt")
    report = look(folder)
    both = [pair.net.path for pair in report.pairs if pair.fits]
    assert both == ["again.prototxt", "deploy.prototxt"]
    assert len(report.best) == 1


def test_nets_of_faces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command for an UltraFace, which has its means, and for an MTCNN, of which only the first net is given."""
    monkeypatch.chdir(tmp_path)
    for name, prototxt in {**MTCNN, "ultra.prototxt": ULTRA_FACE}.items():
        Path(name).write_text(prototxt)
        Net(name, TEST).save(Path(name).with_suffix(".caffemodel"))
    Image.new("RGB", (50, 40)).save("photo.png")
    report = look(".")
    commands = [step.command for step in report.steps if step.why.endswith(": find faces")]
    assert commands == [
        "minicaffe detect det1.prototxt det1.caffemodel photo.png --draw det1_out",
        "minicaffe detect ultra.prototxt ultra.caffemodel photo.png --draw ultra_out",
    ]
    assert report.missing == [] and not any(step.command.startswith("minicaffe run") for step in report.steps)
    traced = [step.command for step in report.steps if "trace" in step.command]
    assert [one.split("-o ")[1] for one in traced] == [f"{name}_trace.html" for name in ("det1", "ultra", "det2", "det3")]
    fed = "--image photo.png --rgb --axes wh --mean 127.5,127.5,127.5 --scale-factor 0.0078125 -o det1_trace.html"
    assert traced[0] == f"minicaffe trace det1.prototxt det1.caffemodel {fed}"
    for command in (*commands, traced[0], traced[-1]):
        ran = CliRunner().invoke(main, shlex.split(command)[1:])
        assert ran.exit_code == 0, (command, ran.output)
    Path("det3.caffemodel").unlink()
    report = look(".")
    assert "det1.caffemodel looks like MTCNN's first net, so det2.caffemodel and det3" in " ".join(report.missing)
    assert report.steps[0].command.startswith("minicaffe run det1.prototxt det1.caffemodel --input ")


def test_other_families_are_detected_too(tmp_path: Path) -> None:
    """Their nets are exported without boxes; an R-CNN's settings are no SqueezeDet's."""
    net = f"{BLOB.replace('4 dim: 6', '448 dim: 448')} {pooled(64, 30)} {reshaped(1470)}"
    (tmp_path / "yolo.prototxt").write_text(net)
    Net(tmp_path / "yolo.prototxt", TEST).save(tmp_path / "yolo.caffemodel")
    report = look(tmp_path)
    files = " ".join(pasted(f"{tmp_path}/yolo.{suffix}") for suffix in ("prototxt", "caffemodel"))
    assert [step.command for step in report.steps if not step.command.startswith("pip")][:2] == [
        f"minicaffe detect {files} {SCENE} --draw out",
        f"minicaffe export {files} -o model.onnx --check",
    ]
    (mean,) = (one for one in report.missing if one.startswith("the mean and the scale of the images: no file gives them. "))
    assert "detect subtracts 104,117,123 for an SSD" in mean and "--mean 127.5,127.5,127.5 --scale-factor 0.007843" in mean


@pytest.mark.usefixtures("known")
def test_a_detectors_own_anchors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The net fits only with the numbers of its generate_anchors.py, and the commands give that file."""
    write_repository(tmp_path / "old")
    monkeypatch.chdir(tmp_path)
    report = look("old")
    assert [pair.fits for pair in report.pairs] == [True]
    commands = [step.command for step in report.steps if step.command.startswith("minicaffe ")]
    assert commands and all(" --anchors old/lib/rpn/generate_anchors.py" in command for command in commands)
    (detect,) = (command for command in commands if command.startswith("minicaffe detect"))
    result = CliRunner().invoke(main, shlex.split(detect)[1:])
    assert result.exit_code == 0 and " 0 detections" not in result.output, result.output
    assert f" --anchors {pasted(f'{tmp_path}/old/lib/rpn/generate_anchors.py')}" in next(
        step.command for step in look(tmp_path / "old").steps
    )


@pytest.mark.usefixtures("known")
def test_a_detectors_anchors_that_cannot_be_read(tmp_path: Path) -> None:
    _, _, file = write_repository(tmp_path, "def generate_anchors(scales=cfg.SCALES):")
    report = look(tmp_path)
    says = f"the anchors of models/zf/test.prototxt: {file}:3: the default scales=cfg.SCALES cannot be read without"
    assert [line for line in report.missing if says in line]
    write_own(file)
    assert not look(tmp_path).anchors, "py-faster-rcnn's numbers are the layers' own"
