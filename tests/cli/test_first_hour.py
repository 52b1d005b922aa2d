"""What newcomers meet: a fork's Python layers, forgotten options and inputs, weights where they are expected."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from detecting import DETECTOR

from minicaffe import TEST, Net
from minicaffe.cli import main

ROOT = Path(__file__).resolve().parents[2]
PASSED_ON = """import caffe
class PassedOn(caffe.Layer):
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
"""
TRAINED = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 5 dim: 3 } data_filler { type: "gaussian" } } }
layer { name: "same" type: "Python" bottom: "x" top: "same" python_param { module: "passed_on" layer: "PassedOn" } }
layer { name: "ip" type: "InnerProduct" bottom: "same" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "x" top: "loss" }
"""
DEPLOY = """
input: "data" input_shape { dim: 2 dim: 3 dim: 7 dim: 5 }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
"""
SOLVER = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 2 snapshot_after_train: false '


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("deploy.prototxt").write_text(DEPLOY)
    Net("deploy.prototxt", TEST).save("net.caffemodel")
    return tmp_path


@pytest.mark.slow
def test_an_allowed_module_may_import_caffe(folder: Path) -> None:
    """In a process of its own: `import caffe` stays what it became."""
    Path("passed_on.py").write_text(PASSED_ON)
    Path("train.prototxt").write_text(TRAINED)
    Path("solver.prototxt").write_text(SOLVER + 'net: "train.prototxt"')
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "minicaffe", "train", "solver.prototxt", "--allow-module", "passed_on"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert "Optimization Done." in done.stderr
    refused = run("train", "solver.prototxt")
    assert refused.exit_code == 1 and "--allow-module passed_on, or minicaffe.allow_module(" in refused.stderr


@pytest.mark.parametrize(("given", "said"), [((), True), (("--device", "cpu"), False), (("--device", "auto"), False)])
def test_a_solver_that_wants_a_gpu_says_so(folder: Path, given: tuple[str, ...], said: bool) -> None:
    Path("train.prototxt").write_text(
        TRAINED.replace("Python", "Power").replace('python_param { module: "passed_on" layer: "PassedOn" }', "")
    )
    Path("solver.prototxt").write_text(SOLVER + 'solver_mode: GPU net: "train.prototxt"')
    result = run("train", "solver.prototxt", *given)
    assert result.exit_code == 0, result.output
    assert ("WARNING: solver_mode is GPU, but training runs on the CPU: give --device gpu or auto" in result.stderr) is said


def test_features_of_inputs_that_nobody_fills_are_refused(folder: Path) -> None:
    result = run("extract-features", "net.caffemodel", "deploy.prototxt", "ip", "features", 1)
    assert result.exit_code == 1
    assert result.stderr.startswith('minicaffe: the net\'s input "data" would stay zero: replace it with a data layer')
    assert not Path("features").exists()


def test_time_and_summary_take_weights(folder: Path) -> None:
    Path("other.prototxt").write_text(DETECTOR)
    Net("other.prototxt", TEST).save("other.caffemodel")
    for words in (("time", "deploy.prototxt", "{}", "--iterations", 1), ("summary", "deploy.prototxt", "{}")):
        good = run(*(str(word).format("net.caffemodel") for word in words))
        assert good.exit_code == 0 and "no weights" not in good.output, good.output
        bad = run(*(str(word).format("other.caffemodel") for word in words))
        assert bad.exit_code == 1 and "other.caffemodel: none of its layers has the name of a layer with weights" in bad.output


def test_retarget_makes_the_folder_of_its_output(folder: Path) -> None:
    Path("detector.prototxt").write_text(DETECTOR)
    result = run("retarget", "detector.prototxt", "--classes", 7, "--out", "new/deep/detector.prototxt")
    assert result.exit_code == 0, result.output
    assert Path("new/deep/detector.prototxt").is_file()
    Path("file").write_text("")
    result = run("retarget", "detector.prototxt", "--classes", 7, "--out", "file/detector.prototxt")
    assert result.exit_code == 1 and "--out file: this is a file" in result.output


def test_rois_and_im_info_are_known_by_who_reads_them(folder: Path) -> None:
    Path("head.prototxt").write_text(
        'input: "map" input_shape { dim: 1 dim: 3 dim: 9 dim: 12 } input: "regions" input_shape { dim: 4 dim: 5 }\n'
        'layer { name: "pool" type: "ROIPooling" bottom: "map" bottom: "regions" top: "pool"\n'
        "  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.0625 } }\n"
        'layer { name: "again" type: "ROIPooling" bottom: "map" bottom: "regions" top: "again"\n'
        "  roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.0625 } }\n"
    )
    result = run("run", "head.prototxt")
    assert result.exit_code == 0, result.output
    assert "input regions not given: 4 random boxes in 192 x 144 pixels (seed 0)" in result.stderr
    Path("rpn.prototxt").write_text(
        'input: "scores" input_shape { dim: 1 dim: 18 dim: 5 dim: 7 }\n'
        'input: "deltas" input_shape { dim: 1 dim: 36 dim: 5 dim: 7 }\n'
        'input: "size" input_shape { dim: 1 dim: 3 }\n'
        'layer { name: "p" type: "Python" bottom: "scores" bottom: "deltas" bottom: "size" top: "rois"\n'
        '  python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "\'feat_stride\': 16" } }\n'
    )
    assert "input size not given: height 5, width 7, scale 1" in run("run", "rpn.prototxt").stderr


def test_training_a_detector_without_its_settings_says_so(folder: Path) -> None:
    tops = " ".join(f'top: "{name}"' for name in ("rois", "labels", "targets", "inside", "outside"))
    Path("train.prototxt").write_text(
        'input: "proposals" input_shape { dim: 2 dim: 5 } input: "gt_boxes" input_shape { dim: 1 dim: 5 }\n'
        f'layer {{ name: "targets" type: "Python" bottom: "proposals" bottom: "gt_boxes" {tops}\n'
        '  python_param { module: "rpn.proposal_target_layer" layer: "ProposalTargetLayer"'
        """ param_str: "'num_classes': 4" } }\n"""
    )
    Path("solver.prototxt").write_text(SOLVER + 'train_net: "train.prototxt"')
    Path("end2end.yml").write_text("TRAIN:\n  HAS_RPN: True\n")
    said = "WARNING: no --cfg: the net trains proposals and boxes together with default settings"
    assert said in run("train", "solver.prototxt").stderr
    assert said not in run("train", "solver.prototxt", "--cfg", "end2end.yml").stderr


def test_another_nets_weights_say_so(folder: Path) -> None:
    """5 layers, of which the file has 1, and then 2."""
    layer = 'layer {{ name: "{0}" type: "InnerProduct" bottom: "data" top: "{0}" inner_product_param {{ num_output: 4 }} }}\n'
    Path("wide.prototxt").write_text(DEPLOY + "".join(map(layer.format, "bcde")))
    result = run("run", "wide.prototxt", "net.caffemodel")
    assert result.exit_code == 1
    assert "net.caffemodel: looks like another net's file: 1 of 5 layers match: ip" in result.stderr
    assert run("run", "wide.prototxt", "net.caffemodel", "--random-weights").exit_code == 0
    Path("narrow.prototxt").write_text(DEPLOY + "".join(map(layer.format, "bcd")))
    assert run("run", "narrow.prototxt", "net.caffemodel").exit_code == 0
