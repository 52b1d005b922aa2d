"""An SSD, whole: trained on pictures of one bright square each, it then finds the squares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Net, SGDSolver, set_random_seed
from minicaffe.proto import caffe_pb2

BODY = """
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 8 kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }
layer { name: "norm" type: "Normalize" bottom: "conv2" top: "norm"
  norm_param { across_spatial: false channel_shared: false scale_filler { value: 5 } } }
layer { name: "loc" type: "Convolution" bottom: "norm" top: "loc"
  convolution_param { num_output: 4 kernel_size: 5 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "loc_perm" type: "Permute" bottom: "loc" top: "loc_perm"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "loc_flat" type: "Flatten" bottom: "loc_perm" top: "loc_flat" }
layer { name: "conf" type: "Convolution" bottom: "norm" top: "conf"
  convolution_param { num_output: 2 kernel_size: 5 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "conf_perm" type: "Permute" bottom: "conf" top: "conf_perm"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conf_flat" type: "Flatten" bottom: "conf_perm" top: "conf_flat" }
layer { name: "prior" type: "PriorBox" bottom: "norm" bottom: "data" top: "prior"
  prior_box_param { min_size: 8 clip: false variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
"""
TRAIN_NET = """
input: "data" input_shape { dim: 8 dim: 1 dim: 24 dim: 32 }
input: "label" input_shape { dim: 1 dim: 1 dim: 8 dim: 8 }
%s
layer { name: "loss" type: "MultiBoxLoss" bottom: "loc_flat" bottom: "conf_flat" bottom: "prior" bottom: "label" top: "loss"
  multibox_loss_param { num_classes: 2 code_type: CENTER_SIZE overlap_threshold: 0.4 } }
"""
TEST_NET = """
input: "data" input_shape { dim: 8 dim: 1 dim: 24 dim: 32 }
input: "label" input_shape { dim: 1 dim: 1 dim: 8 dim: 8 }
%s
layer { name: "scores" type: "Reshape" bottom: "conf_flat" top: "scores"
  reshape_param { shape { dim: 0 dim: -1 dim: 2 } } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" softmax_param { axis: 2 } }
layer { name: "flat" type: "Flatten" bottom: "prob" top: "flat" }
layer { name: "found" type: "DetectionOutput" bottom: "loc_flat" bottom: "flat" bottom: "prior" top: "found"
  detection_output_param { num_classes: 2 code_type: CENTER_SIZE confidence_threshold: 0.3 keep_top_k: 1
    nms_param { nms_threshold: 0.3 top_k: 20 } } }
layer { name: "judged" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "judged"
  detection_evaluate_param { num_classes: 2 } }
"""


def scenes(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """8 pictures (8, 1, 24, 32), each with a square of 6 to 10 pixels, and their true boxes (1, 1, 8, 8)."""
    data, rows = random.normal(0, 0.05, (8, 1, 24, 32)), np.zeros((1, 1, 8, 8))
    for i in range(8):
        side = int(random.integers(6, 11))
        x, y = int(random.integers(0, 32 - side)), int(random.integers(0, 24 - side))
        data[i, 0, y : y + side, x : x + side] += 1
        rows[0, 0, i] = [i, 1, 0, x / 32, y / 24, (x + side) / 32, (y + side) / 24, 0]
    return data, rows


@pytest.mark.slow
def test_a_small_ssd_learns_to_find_squares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.prototxt").write_text(TRAIN_NET % BODY)
    Path("test.prototxt").write_text(TEST_NET % BODY)
    set_random_seed(4)
    rates = {"base_lr": 0.01, "lr_policy": "fixed", "momentum": 0.9, "snapshot_after_train": False}
    solver = SGDSolver(caffe_pb2.SolverParameter(train_net="train.prototxt", **rates))
    random = np.random.default_rng(6)
    losses = []
    for _ in range(40):
        solver.net.blobs["data"].data[...], solver.net.blobs["label"].data[...] = scenes(random)
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data))
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:3])
    net = Net("test.prototxt", TEST)
    net.share_with(solver.net)
    data, label = scenes(np.random.default_rng(7))
    judged = net.forward(data=data, label=label)["judged"][0, 0]
    assert judged[0].tolist() == [-1, 1, 8, -1, -1]
    assert judged[1:, 3].sum() >= 7
