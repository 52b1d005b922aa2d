"""train's sizes without editing files: --epochs, --batch, --classes and --lr."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from batches import image, make_database
from PIL import Image
from small_rfcn import NAMES, TRAIN, make_small_rfcn, run, write_roidb

from minicaffe.formats.weights import read_weights
from minicaffe.proto import caffe_pb2
from minicaffe.training.snapshots import read_state


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_small_rfcn()
    return tmp_path


def test_epochs_batch_and_rate_print_what_they_replace(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = run(*TRAIN, "--epochs", 3, "--batch", 2, "--lr", 0.02, "--snapshot-prefix", "runs/mine")
    assert result.exit_code == 0, result.output
    assert "--lr: base_lr 0.02 in place of 0.01" in result.output
    assert "--batch: iter_size 2 in place of 1, at 1 image a pass" in result.output
    sums = "--epochs: 3 x 4 images (mirror images included) / (1 a pass x iter_size 2) = 6 iterations, in place of max_iter 5"
    assert sums in result.output
    assert "lr 0.02" in result.output or "lr = 0.02" in result.output
    assert "--snapshot-prefix: runs/mine in place of run\n" in result.output
    assert read_state("runs/mine_iter_6.solverstate").iteration == 6 and not list(folder.glob("run_*"))
    result = run(*TRAIN, "--epochs", 3, "--snapshot-prefix", "runs/mine", "--snapshot", "latest")
    assert "going on from runs/mine_iter_6.solverstate" in result.output
    assert "The snapshot was trained with base_lr 0.02 (now 0.01), batch 2 (now 1). To continue" in caplog.text


def test_a_resumed_training_with_other_options_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(*TRAIN, "--iterations", 1, "--augment", "distort=0.5,expand=2").exit_code == 0
    assert run(*TRAIN, "--iterations", 1, "--augment", "distort=0.5,expand=2", "--snapshot", "latest").exit_code == 0
    assert "was trained with" not in caplog.text
    assert run(*TRAIN, "--iterations", 1, "--augment", "distort", "--snapshot", "latest").exit_code == 0
    assert "with TRAIN.DISTORT 0.5 (now 1.0), TRAIN.EXPAND 2.0 (now the default)." in caplog.text


def test_snapshots_in_a_folder_that_the_command_names(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A prototxt may not name a folder elsewhere without --allow, but an option may."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    result = run(*TRAIN, "--iterations", 1, "--snapshot-prefix", elsewhere / "mine")
    assert result.exit_code == 0, result.output
    assert (elsewhere / "mine_iter_1.caffemodel").exists()


def test_a_resumed_training_ends_after_the_same_epochs(folder: Path) -> None:
    assert run(*TRAIN, "--epochs", 2, "--keep", 1).exit_code == 0
    whole = Path("run_iter_8.caffemodel").read_bytes()
    Path("run_iter_8.caffemodel").unlink()
    assert run(*TRAIN, "--iterations", 3).exit_code == 0
    result = run(*TRAIN, "--epochs", 2, "--snapshot", "latest")
    assert result.exit_code == 0, result.output
    assert Path("run_iter_8.caffemodel").read_bytes() == whole


def test_batches_of_several_images_without_an_rpn(folder: Path) -> None:
    head = """layer { name: "data" type: "RoIData" top: "data" top: "rois" top: "labels"
      python_param { param_str: "'num_classes': 4" } }
    layer { name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool"
      roi_pooling_param { pooled_h: 1 pooled_w: 1 } }
    layer { name: "cls" type: "InnerProduct" bottom: "pool" top: "cls" inner_product_param { num_output: 4 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "cls" bottom: "labels" top: "loss" }"""
    Path("train.prototxt").write_text(head)
    result = run(*TRAIN, "--batch", 6, "--epochs", 3)
    assert result.exit_code == 0, result.output
    assert "--batch: iter_size 3 in place of 1, at 2 images a pass" in result.output
    assert "(2 a pass x iter_size 3) = 2 iterations" in result.output
    result = run(*TRAIN, "--batch", 3)
    assert result.exit_code == 1
    assert '--batch 3: give a multiple of 2, because layer "data" reads 2 images a pass' in result.output


CLASSIFIER = """layer { name: "in" type: "ImageData" top: "data" top: "label" include { phase: TRAIN }
  image_data_param { source: "list.txt" batch_size: 4 } }
layer { name: "in" type: "ImageData" top: "data" top: "label" include { phase: TEST }
  image_data_param { source: "list.txt" batch_size: 5 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" test_iter: 1 test_interval: 100 snapshot_prefix: "c" '


@pytest.fixture
def classifier(folder: Path) -> Path:
    for i in range(7):
        Image.fromarray(np.full((6, 8, 3), 30 * i, np.uint8)).save(f"{i}.png")
    Path("list.txt").write_text("".join(f"{i}.png {i % 3}\n" for i in range(7)))
    Path("net.prototxt").write_text(CLASSIFIER)
    Path("c.prototxt").write_text(SOLVER)
    return folder


def test_the_batch_size_of_a_data_layer(classifier: Path) -> None:
    result = run("train", "c.prototxt", "--batch", 2, "--epochs", 2)
    assert result.exit_code == 0, result.output
    assert "--batch: batch_size 2 in place of 4 (layer in)" in result.output
    assert "--epochs: 2 x 7 images / (2 a pass x iter_size 1) = 7 iterations\n" in result.output
    Path("c.prototxt").write_text(SOLVER + "iter_size: 3")
    result = run("train", "c.prototxt", "--batch", 6, "--epochs", 1)
    assert "--batch: batch_size 2 in place of 4 (layer in)" in result.output
    assert "/ (2 a pass x iter_size 3) = 2 iterations" in result.output
    result = run("train", "c.prototxt", "--batch", 4, "--epochs", 1)
    assert result.exit_code == 1 and "--batch 4: give a multiple of 3, because iter_size is 3" in result.output


def test_what_is_refused(classifier: Path) -> None:
    result = run("train", "c.prototxt", "--epochs", 1, "--iterations", 2)
    assert result.exit_code == 2 and "--epochs and --iterations: give one of them" in result.output
    text = CLASSIFIER.replace("ImageData", "DummyData").replace("image_data_param", "dummy_data_param")
    for size in (4, 5):
        text = text.replace(f'source: "list.txt" batch_size: {size}', "shape { dim: 2 dim: 3 } shape { dim: 2 }")
    Path("net.prototxt").write_text(text)
    result = run("train", "c.prototxt", "--epochs", 1)
    assert result.exit_code == 1 and "--epochs: no data layer of the net counts its images: give --iterations" in result.output
    result = run("train", "c.prototxt", "--batch", 2, "--iterations", 1)
    assert result.exit_code == 1 and "--batch: no data layer of the net has a batch_size" in result.output
    result = run("train", "c.prototxt", "--classes", 3, "--iterations", 1)
    assert result.exit_code == 1 and "--classes: net.prototxt: no class count found" in result.output
    Path("c.prototxt").write_text('net: "net.prototxt" lr_policy: "multifixed" stagelr: 0.1 stageiter: 9 snapshot_prefix: "c"')
    result = run("train", "c.prototxt", "--lr", 1, "--iterations", 1)
    assert result.exit_code == 1 and "--lr does nothing here" in result.output


@pytest.mark.parametrize("way", ["number", "file"])
def test_other_classes_without_editing_files(folder: Path, way: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.glob("*.prototxt")}
    assert run(*TRAIN, "--iterations", 1, "--out", "old.caffemodel").exit_code == 0
    write_roidb("train.json", 2, ["round", "angular"])
    write_roidb("val.json", 2, ["round", "angular"], seed=7)
    Path("names.txt").write_text("round\nangular\n")
    classes = "3" if way == "number" else "names.txt"
    options = ("--classes", classes, "--val", "val.json", "--weights", "old.caffemodel")
    result = run(*TRAIN, *options, "--iterations", 1)
    assert result.exit_code == 0, result.output
    line = "--classes: 3 classes in place of 4 in train.prototxt; new layers rfcn_cls_3, rfcn_bbox_3, which start from their"
    assert line in result.output.replace("rfcn_bbox_3, rfcn_cls_3", "rfcn_cls_3, rfcn_bbox_3")
    assert "old.caffemodel: lacks the weights of rfcn_cls_3, rfcn_bbox_3, which start from their fillers" in result.output
    assert "WARNING: train.json has" not in result.output
    assert {name: Path(name).read_bytes() for name in before} == before
    shapes = dict(read_weights("run_best.caffemodel").shapes())
    assert shapes["rfcn_bbox_3"][0][0] == 4 * shapes["rfcn_cls_3"][0][0] == 4 * 3 * 9
    assert "written: run_test.prototxt (test.prototxt for 3 classes)" in result.output
    result = run("evaluate", "run_test.prototxt", "run_best.caffemodel", "val.json", "--cfg", "small.yml")
    assert result.exit_code == 0, result.output
    result = run(*TRAIN, *options[:4], "--iterations", 1, "--snapshot", "latest")
    assert result.exit_code == 0 and "which start from their fillers" not in result.output, result.output


def test_the_same_number_of_classes_changes_nothing(folder: Path) -> None:
    Path("names.txt").write_text("\n".join(NAMES))
    for classes in ("names.txt", 4):
        result = run(*TRAIN, "--classes", classes, "--iterations", 1)
        assert result.exit_code == 0 and "--classes:" not in result.output and not Path("run_test.prototxt").exists()


def test_a_mismatch_names_the_option(folder: Path) -> None:
    write_roidb("train.json", 2, ["circle", "square"])
    result = run(*TRAIN, "--iterations", 1)
    assert "has num_classes 4: train --classes 3, or retarget, changes the net" in result.output


SSD = """%s
layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: 4 kernel_size: 3 stride: 3 } }
layer { name: "loc_perm" type: "Permute" bottom: "loc" top: "loc_perm" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "loc_flat" type: "Flatten" bottom: "loc_perm" top: "loc_flat" }
layer { name: "conf" type: "Convolution" bottom: "data" top: "conf"
  convolution_param { num_output: 3 kernel_size: 3 stride: 3 } }
layer { name: "conf_perm" type: "Permute" bottom: "conf" top: "conf_perm"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conf_flat" type: "Flatten" bottom: "conf_perm" top: "conf_flat" }
layer { name: "prior" type: "PriorBox" bottom: "conf" bottom: "data" top: "prior" prior_box_param { min_size: 6 } }
"""
DATA = """layer { name: "in" type: "AnnotatedData" top: "data" top: "label"
  transform_param { scale: 0.01 mean_value: 100 resize_param { height: 12 width: 12 interp_mode: LINEAR } }
  annotated_data_param { } data_param { source: "boxes" backend: LMDB batch_size: 2 } }"""
LOSS = """layer { name: "loss" type: "MultiBoxLoss" top: "loss"
  bottom: "loc_flat" bottom: "conf_flat" bottom: "prior" bottom: "label" multibox_loss_param { num_classes: 3 } }"""
INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 12 dim: 12 } } }'
OUT = """layer { name: "scores" type: "Reshape" bottom: "conf_flat" top: "scores"
  reshape_param { shape { dim: 0 dim: -1 dim: 3 } } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" softmax_param { axis: 2 } }
layer { name: "flat" type: "Flatten" bottom: "prob" top: "flat" }
layer { name: "out" type: "DetectionOutput" bottom: "loc_flat" bottom: "flat" bottom: "prior" top: "out"
  detection_output_param { num_classes: 3 nms_param { nms_threshold: 0.4 top_k: 20 } keep_top_k: 10 } }"""


def test_an_ssd(folder: Path) -> None:
    """Its images come from a database, and its test net is deploy.prototxt: test.prototxt reads a database too."""
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    items = []
    for i in range(6):
        pixels = image(i, 12, 12).transpose(2, 0, 1)
        datum = caffe_pb2.Datum(channels=3, height=12, width=12, data=pixels.tobytes())
        items.append(caffe_pb2.AnnotatedDatum(datum=datum, type=caffe_pb2.AnnotatedDatum.BBOX))
        box = caffe_pb2.NormalizedBBox(xmin=0.1, ymin=0.1, xmax=0.7, ymax=0.7)
        items[-1].annotation_group.add(group_label=1 + i % 3).annotation.add(bbox=box)
    make_database("boxes", items)  # type: ignore[arg-type]
    Path("train.prototxt").write_text(SSD % DATA + LOSS)
    Path("test.prototxt").write_text(SSD % DATA + OUT)
    Path("deploy.prototxt").write_text(SSD % INPUT + OUT)
    Path("names.txt").write_text("\n".join(NAMES))
    options = ("--val", "val.json", "--classes", "names.txt", "--batch", 3, "--epochs", 2)
    result = run("train", "solver.prototxt", *options)
    assert result.exit_code == 0, result.output
    assert (
        "--classes: 4 classes in place of 3 in train.prototxt; new layers conf_4, which start from their fill" in result.output
    )
    assert "--batch: batch_size 3 in place of 2 (layer in)" in result.output
    assert "--epochs: 2 x 6 images / (3 a pass x iter_size 1) = 4 iterations, in place of max_iter 5" in result.output
    assert "val.json: 3 images for validation with deploy.prototxt, every 3 iterations and at the end" in result.output
    means = ("--mean", "100,100,100", "--scale-factor", 0.01)
    found = run("evaluate", "run_test.prototxt", "run_best.caffemodel", "val.json", *means, "--out", "found.json")
    assert found.exit_code == 0, found.output
    assert f": voc_ap {json.loads(Path('found.json').read_text())['map']:.4f}" in result.output.splitlines()[-1]
