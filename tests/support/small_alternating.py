"""A folder with the files of faster_rcnn_alt_opt for small nets, two images with boxes, and the weights to start from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

import minicaffe

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
SOLVERS = {name: f"{name}_solver{'60k80k' if 'rpn' in name[-3:] else '30k40k'}.pt" for name in NETS}
TEST_RPN = INPUTS + (TRUNK + RPN).replace("LR", "") + PAIRS + PROPOSAL
PROB = """layer { name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }
"""
CFG = """TRAIN: {BG_THRESH_LO: 0.0, SCALES: [64], MAX_SIZE: 100, RPN_MIN_SIZE: 4}
TEST: {HAS_RPN: True, SCALES: [64], MAX_SIZE: 100, RPN_MIN_SIZE: 4, RPN_PRE_NMS_TOP_N: 5, RPN_POST_NMS_TOP_N: 2}
"""


def make_small_alternating() -> None:
    """Write faster_rcnn_alt_opt/, faster_rcnn_alt_opt.yml, ZF.v2.caffemodel and roidb.json into the working directory."""
    folder = Path("faster_rcnn_alt_opt")
    folder.mkdir()
    for name, text in NETS.items():
        (folder / f"{name}_train.pt").write_text(text)
        lines = 'base_lr: 0.001 lr_policy: "step" gamma: 0.1 stepsize: 3 average_loss: 2 momentum: 0.9 snapshot: 0 display: 1 '
        net = f'train_net: "models/small/faster_rcnn_alt_opt/{name}_train.pt" snapshot_prefix: "{name[7:]}" '
        (folder / SOLVERS[name]).write_text(net + lines)
    (folder / "rpn_test.pt").write_text(TEST_RPN)
    (folder / "faster_rcnn_test.pt").write_text(TEST_RPN.replace(' top: "scores"', "") + HEAD + PROB)
    Path("faster_rcnn_alt_opt.yml").write_text(CFG)
    images = []
    for i in range(2):
        pixels = np.random.default_rng(i).integers(0, 255, (45, 61, 3), np.uint8)  # scaled, no box ends at a whole pixel
        Image.fromarray(pixels).save(f"{i}.png")
        images.append({"image": f"{i}.png", "boxes": [[4, 4, 30, 30]], "classes": ["b"]})
    Path("roidb.json").write_text(json.dumps({"classes": ["a", "b"], "images": images}))
    minicaffe.rng.set_random_seed(1)
    minicaffe.Net(folder / "stage1_rpn_train.pt", minicaffe.TRAIN).save("ZF.v2.caffemodel")
