"""The recipe of docs/training.md for training in alternating stages, as it is written, on small nets of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import minicaffe
from minicaffe.cli import main
from minicaffe.formats.weights import read_weights

TEXT = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
RECIPE = TEXT[TEXT.index("## A Faster R-CNN in alternating stages") : TEXT.index("**The result is `final.caffemodel`.**")]

DATA = """layer {{ name: "data" type: "Python" {tops} python_param {{ module: "roi_data_layer.layer" layer: "RoIDataLayer"
  param_str: "'num_classes': 3" }} }}
"""
INPUTS = """layer { name: "in" type: "Input" top: "data" top: "im_info"
  input_param { shape { dim: 1 dim: 3 dim: 64 dim: 64 } shape { dim: 1 dim: 3 } } }
"""
FILLER = 'weight_filler { type: "gaussian" std: 0.01 }'
TRUNK = f"""layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv" LR
  convolution_param {{ num_output: 4 kernel_size: 16 stride: 16 {FILLER} }} }}
"""
RPN = f"""layer {{ name: "rpn_cls_score" type: "Convolution" bottom: "conv" top: "rpn_cls_score" LR
  convolution_param {{ num_output: 18 kernel_size: 1 {FILLER} }} }}
layer {{ name: "rpn_bbox_pred" type: "Convolution" bottom: "conv" top: "rpn_bbox_pred" LR
  convolution_param {{ num_output: 36 kernel_size: 1 {FILLER} }} }}
"""
PAIRS = """layer { name: "pairs" type: "Reshape" bottom: "rpn_cls_score" top: "pairs"
  reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } } }
"""
RPN_LOSS = """layer { name: "targets" type: "Python" bottom: "rpn_cls_score" bottom: "gt_boxes" bottom: "im_info" bottom: "data"
  top: "labels" top: "targets" top: "inside" top: "outside"
  python_param { module: "rpn.anchor_target_layer" layer: "AnchorTargetLayer"
    param_str: "'feat_stride': 16\\n'scales': [1, 2, 3]" } }
layer { name: "cls" type: "SoftmaxWithLoss" bottom: "pairs" bottom: "labels" top: "cls" loss_param { ignore_label: -1 } }
layer { name: "box" type: "SmoothL1Loss" bottom: "rpn_bbox_pred" bottom: "targets" bottom: "inside" bottom: "outside"
  top: "box" }
"""
PROPOSAL = """layer { name: "prob" type: "Softmax" bottom: "pairs" top: "prob" }
layer { name: "flat" type: "Reshape" bottom: "prob" top: "flat" reshape_param { shape { dim: 0 dim: 18 dim: -1 dim: 0 } } }
layer { name: "proposal" type: "Python" bottom: "flat" bottom: "rpn_bbox_pred" bottom: "im_info" top: "rois" top: "scores"
  python_param { module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "'feat_stride': 16\\n'scales': [1, 2, 3]" } }
"""
HEAD = f"""layer {{ name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param {{ pooled_w: 2 pooled_h: 2 spatial_scale: 0.0625 }} }}
layer {{ name: "cls_score" type: "InnerProduct" bottom: "pool" top: "cls_score"
  inner_product_param {{ num_output: 3 {FILLER} }} }}
layer {{ name: "bbox_pred" type: "InnerProduct" bottom: "pool" top: "bbox_pred"
  inner_product_param {{ num_output: 12 {FILLER} }} }}
"""
HEAD_LOSS = """layer { name: "cls" type: "SoftmaxWithLoss" bottom: "cls_score" bottom: "labels" top: "cls" }
layer { name: "box" type: "SmoothL1Loss" bottom: "bbox_pred" bottom: "targets" bottom: "inside" bottom: "outside" top: "box" }
"""
KEPT_RPN = """layer { name: "unused" type: "Silence" bottom: "rpn_cls_score" bottom: "rpn_bbox_pred" }
"""


def tops(*names: str) -> str:
    return DATA.format(tops=" ".join(f'top: "{name}"' for name in names))


WITH_RPN = tops("data", "im_info", "gt_boxes")
WITHOUT = tops("data", "rois", "labels", "targets", "inside", "outside")
STILL = "param { lr_mult: 0 } param { lr_mult: 0 }"
NETS = {
    "stage1_rpn": WITH_RPN + TRUNK.replace("LR", "") + RPN.replace("LR", "") + PAIRS + RPN_LOSS,
    "stage1_fast_rcnn": WITHOUT + TRUNK.replace("LR", "") + HEAD + HEAD_LOSS,
    "stage2_rpn": WITH_RPN + TRUNK.replace("LR", STILL) + RPN.replace("LR", "") + PAIRS + RPN_LOSS,
    "stage2_fast_rcnn": WITHOUT + TRUNK.replace("LR", STILL) + HEAD + HEAD_LOSS + RPN.replace("LR", STILL) + KEPT_RPN,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the recipe's files."""
    monkeypatch.chdir(tmp_path)
    for name, text in NETS.items():
        iterations = "60k80k" if "rpn" in name else "30k40k"
        (tmp_path / f"{name}_train.pt").write_text(text)
        solver = f'train_net: "{name}_train.pt" base_lr: 0.001 lr_policy: "fixed" snapshot_prefix: "{name[7:]}" random_seed: 1'
        (tmp_path / f"{name}_solver{iterations}.pt").write_text(solver)
    (tmp_path / "rpn_test.pt").write_text(INPUTS + (TRUNK + RPN).replace("LR", "") + PAIRS + PROPOSAL)
    (tmp_path / "faster_rcnn_alt_opt.yml").write_text(
        "TRAIN: {BG_THRESH_LO: 0.0, SCALES: [64], MAX_SIZE: 100, RPN_MIN_SIZE: 4}\n"
        "TEST: {HAS_RPN: True, SCALES: [64], MAX_SIZE: 100, RPN_MIN_SIZE: 4, RPN_PRE_NMS_TOP_N: 5, RPN_POST_NMS_TOP_N: 2}\n"
    )
    images = []
    for i in range(2):
        pixels = np.random.default_rng(i).integers(0, 255, (45, 61, 3), np.uint8)  # scaled, no box ends at a whole pixel
        Image.fromarray(pixels).save(f"{i}.png")
        images.append({"image": f"{i}.png", "boxes": [[4, 4, 30, 30]], "classes": ["b"]})
    (tmp_path / "roidb.json").write_text(json.dumps({"classes": ["a", "b"], "images": images}))
    net = minicaffe.Net("stage1_rpn_train.pt", minicaffe.TRAIN)
    net.save("ZF.v2.caffemodel")
    return tmp_path


def weights(file: str) -> dict[str, Any]:
    return {layer.name: layer.blobs[0].array for layer in read_weights(file).layers if layer.blobs}


def test_the_recipe_runs_as_it_is_written(folder: Path) -> None:
    scope: dict[str, Any] = {"np": np}
    function = re.search(r"```python\n(.*?)```", RECIPE, re.DOTALL)
    assert function is not None
    exec(function[1], scope)
    steps = re.findall(r"^\$ minicaffe (train .*)$|^(write_proposals\(\"rpn_test.*\))$", RECIPE, re.MULTILINE)
    assert [bool(train) for train, _ in steps] == [True, False, True, True, False, True]
    for train, call in steps:
        if call:
            exec(call.replace("VOC2007", "roidb.json"), scope)
            continue
        words = re.sub(r"--iterations \d+", "--iterations 2", train.replace("VOC2007", "roidb.json")).split()
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
    detector, rpn, final = (weights(f"{name}.caffemodel") for name in ("detector1", "rpn2", "final"))
    for name in ("conv", "rpn_cls_score", "rpn_bbox_pred"):  # the last stage holds both parts, with common convolutions
        np.testing.assert_array_equal(final[name], rpn[name])
    np.testing.assert_array_equal(rpn["conv"], detector["conv"])
    assert {"cls_score", "bbox_pred"} <= set(final)
    boxes = np.load("proposals2/0.npy")
    assert len(boxes) > 5  # all boxes go into the NMS, whatever the yml says
    assert boxes.min() >= 0 and (boxes.max(axis=0) <= [60, 44, 60, 44]).all() and boxes.max() == 60
