"""train --roidb with an SSD: the train net, test nets, resumption, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import main

DATA = """layer { name: "%s" type: "AnnotatedData" top: "data" top: "label" data_param { %s batch_size: 2 backend: LMDB }
  transform_param { mean_value: 100 mirror: true resize_param { height: 24 width: 32 } }
  annotated_data_param { batch_sampler { sampler { min_scale: 0.5 } max_sample: 1 max_trials: 5 } } }
"""
BODY = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 5 stride: 4 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "loc" type: "Convolution" bottom: "conv" top: "loc"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "loc_perm" type: "Permute" bottom: "loc" top: "loc_perm" permute_param { order: [0, 2, 3, 1] } }
layer { name: "loc_flat" type: "Flatten" bottom: "loc_perm" top: "loc_flat" }
layer { name: "conf" type: "Convolution" bottom: "conv" top: "conf"
  convolution_param { num_output: 3 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "conf_perm" type: "Permute" bottom: "conf" top: "conf_perm" permute_param { order: [0, 2, 3, 1] } }
layer { name: "conf_flat" type: "Flatten" bottom: "conf_perm" top: "conf_flat" }
layer { name: "prior" type: "PriorBox" bottom: "conv" bottom: "data" top: "prior"
  prior_box_param { min_size: 12 variance: [0.1, 0.1, 0.2, 0.2] } }
layer { name: "loss" type: "MultiBoxLoss" bottom: "loc_flat" bottom: "conf_flat" bottom: "prior" bottom: "label" top: "loss"
  multibox_loss_param { num_classes: 3 code_type: CENTER_SIZE overlap_threshold: 0.3 } }
"""
SOLVER = """train_net: "train.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 4 display: 1 random_seed: 2
snapshot: 2 snapshot_prefix: "ssd"
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an SSD, and YOLO's annotations of three images."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "val"):
        Path(f"{name}.prototxt").write_text(DATA % (name, f'source: "gone_{name}"') + BODY)
    Path("solver.prototxt").write_text(SOLVER)
    for name, count in (("photos", 3), ("others", 1)):
        random = np.random.default_rng(count)
        (tmp_path / name).mkdir()
        (tmp_path / name / "classes.txt").write_text("cat\ndog\n")
        for i in range(count):
            Image.fromarray(random.integers(0, 256, (48, 64, 3), np.uint8)).save(tmp_path / name / f"{i}.png")
            (tmp_path / name / f"{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.4 0.5\n")
    return tmp_path


def test_a_resumed_training_ends_with_the_same_bits() -> None:
    whole = run("train", "solver.prototxt", "--roidb", "photos", "--out", "whole.caffemodel")
    assert whole.exit_code == 0 and "photos: 3 images, 3 classes" in whole.stdout, whole.output
    resume = ["--snapshot", "ssd_iter_2.solverstate", "--out", "resumed.caffemodel"]
    assert run("train", "solver.prototxt", "--roidb", "photos", *resume).exit_code == 0
    assert Path("whole.caffemodel").read_bytes() == Path("resumed.caffemodel").read_bytes()
    result = run("train", "solver.prototxt", "--roidb", "others", "--snapshot", "ssd_iter_2.solverstate")
    assert result.exit_code == 1 and "it was of 3 items, there are 1" in result.stderr


def losses(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return re.findall(r"Test net output #0: loss = (\S+)", result.stderr)


def test_a_test_net_without_a_database_reads_the_roidb() -> None:
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    Path("solver.prototxt").write_text(SOLVER + 'test_net: "val.prototxt" test_iter: 2 test_interval: 2')
    fed = losses(run("train", "solver.prototxt", "--roidb", "photos"))
    assert run("convert-annoset", "others", "gone_val").exit_code == 0
    own = losses(run("train", "solver.prototxt", "--roidb", "photos"))
    assert len(fed) == len(own) == 3 and fed[0] != own[0]
    assert run("convert-annoset", "photos", "gone_train").exit_code == 0
    assert losses(run("train", "solver.prototxt"))[0] == own[0]


def test_errors() -> None:
    result = run("train", "solver.prototxt")
    reads = 'layer "train" reads gone_train, which is missing, or a roidb: give --roidb'
    assert result.exit_code == 1 and reads in result.stderr
    Path("train.prototxt").write_text(DATA % ("train", "") + BODY)
    result = run("train", "solver.prototxt")
    assert result.exit_code == 1 and 'layer "train" reads a roidb: give --roidb' in result.stderr
    Path("many.json").write_text(
        json.dumps({"classes": list("abc"), "images": [{"image": "photos/0.png", "boxes": [[1, 1, 9, 9]], "classes": ["c"]}]})
    )
    result = run("train", "solver.prototxt", "--roidb", "many.json")
    assert 'many.json has 4 classes with the background, but layer "loss" has num_classes 3' in result.stderr
    assert result.exit_code == 1 and "photos/0.png: class 3 is not one of the 3 classes" in result.stderr
    Path("map.txt").write_text('item { name: "cat" label: 2 } item { name: "dog" label: 3 }')
    mapped = DATA.replace("annotated_data_param {", 'annotated_data_param { label_map_file: "map.txt" ')
    Path("train.prototxt").write_text(mapped % ("train", "") + BODY)
    result = run("train", "solver.prototxt", "--roidb", "photos")
    assert result.exit_code == 1 and "map.txt: a class has the label 3, but the net has 3 classes" in result.stderr


def test_find_lr(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    options = ("--find-lr", "--iterations", 40, "--lr-min", 1e-8, "--lr-max", 1)
    result = run("train", "solver.prototxt", "--roidb", "photos", *options)
    assert result.exit_code == 0, result.output
    assert re.fullmatch(r"--lr \S+", result.stdout.splitlines()[-1])
    assert sorted(folder.rglob("*")) == before
