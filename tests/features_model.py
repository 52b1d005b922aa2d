"""Run `minicaffe features` with bottom-up attention's published net, and compare with what its generate_tsv.py computes.

    python tests/features_model.py [--brief]

The net is its ResNet-101 Faster R-CNN with 1,600 classes and 400 attributes, of seeded random weights. Its trunk is that of
py-R-FCN (../shared/models), layer for layer. The boxes, scores, attributes and features in the command's files are compared
with those of a plain loop over classes and boxes. --brief runs it on a smaller image with 40 rois. The exit status is 1 where
they differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from published_models import MODELS, randomize

from minicaffe import TEST, Net
from minicaffe.cli import main as minicaffe
from minicaffe.data.images import load_image, prepare_image
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.inputs import put_array

TRUNK = MODELS / "py-R-FCN" / "pascal_voc" / "ResNet-101" / "rfcn_end2end" / "test_agnostic.prototxt"
SCENE = Path(__file__).resolve().parents[1] / "examples" / "shapes" / "scene.png"
CLASSES, ATTRIBUTES = 1601, 401
SETTINGS = """TRAIN: {HAS_RPN: True, HAS_ATTRIBUTES: True, HAS_RELATIONS: False}
TEST: {HAS_RPN: True, HAS_ATTRIBUTES: True, HAS_RELATIONS: False, SOFT_NMS: 0%s}
"""
CHOICES = ((0.2, 10, 100), (0.2, 36, 36), (0.2, 5, 12))
"""Threshold, least and most; one of each kind of choice."""
SPREAD = 100
"""What the random weights of the scores are multiplied by."""

HEAD = f"""
layer {{ name: "rpn_conv/3x3" type: "Convolution" bottom: "res4b22" top: "rpn/output"
  convolution_param {{ num_output: 512 kernel_size: 3 pad: 1 }} }}
layer {{ name: "rpn_relu/3x3" type: "ReLU" bottom: "rpn/output" top: "rpn/output" }}
layer {{ name: "rpn_cls_score" type: "Convolution" bottom: "rpn/output" top: "rpn_cls_score"
  convolution_param {{ num_output: 24 kernel_size: 1 }} }}
layer {{ name: "rpn_bbox_pred" type: "Convolution" bottom: "rpn/output" top: "rpn_bbox_pred"
  convolution_param {{ num_output: 48 kernel_size: 1 }} }}
layer {{ name: "rpn_cls_score_reshape" type: "Reshape" bottom: "rpn_cls_score" top: "rpn_cls_score_reshape"
  reshape_param {{ shape {{ dim: 0 dim: 2 dim: -1 dim: 0 }} }} }}
layer {{ name: "rpn_cls_prob" type: "Softmax" bottom: "rpn_cls_score_reshape" top: "rpn_cls_prob" }}
layer {{ name: "rpn_cls_prob_reshape" type: "Reshape" bottom: "rpn_cls_prob" top: "rpn_cls_prob_reshape"
  reshape_param {{ shape {{ dim: 0 dim: 24 dim: -1 dim: 0 }} }} }}
layer {{ name: "proposal" type: "Python" bottom: "rpn_cls_prob_reshape" bottom: "rpn_bbox_pred" bottom: "im_info" top: "rois"
  python_param {{ module: "rpn.proposal_layer" layer: "ProposalLayer"
    param_str: "'feat_stride': 16 \\n'scales': !!python/tuple [4, 8, 16, 32]" }} }}
layer {{ name: "roi_pool5" type: "ROIPooling" bottom: "res4b22" bottom: "rois" top: "roipool5"
  roi_pooling_param {{ pooled_w: 14 pooled_h: 14 spatial_scale: 0.0625 }} }}
%s
layer {{ name: "pool5" type: "Pooling" bottom: "res5c" top: "pool5" pooling_param {{ global_pooling: true pool: AVE }} }}
layer {{ name: "pool5_flat" type: "Flatten" bottom: "pool5" top: "pool5_flat" flatten_param {{ axis: 1 }} }}
layer {{ name: "cls_score" type: "InnerProduct" bottom: "pool5" top: "cls_score"
  inner_product_param {{ num_output: {CLASSES} }} }}
layer {{ name: "bbox_pred" type: "InnerProduct" bottom: "pool5" top: "bbox_pred"
  inner_product_param {{ num_output: {4 * CLASSES} }} }}
layer {{ name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }}
layer {{ name: "predicted_cls" type: "ArgMax" bottom: "cls_score" top: "predicted_cls" argmax_param {{ axis: 1 }} }}
layer {{ name: "cls_embedding" type: "Embed" bottom: "predicted_cls" top: "cls_embedding" propagate_down: false
  embed_param {{ num_output: 256 input_dim: {CLASSES} bias_term: false }} }}
layer {{ name: "cls_embedding_flat" type: "Flatten" bottom: "cls_embedding" top: "cls_embedding_flat"
  flatten_param {{ axis: 1 }} }}
layer {{ name: "concat_pool5" type: "Concat" bottom: "pool5_flat" bottom: "cls_embedding_flat" top: "concat_pool5"
  concat_param {{ axis: 1 }} }}
layer {{ name: "fc_attr" type: "InnerProduct" bottom: "concat_pool5" top: "fc_attr" inner_product_param {{ num_output: 512 }} }}
layer {{ name: "relu_attr" type: "ReLU" bottom: "fc_attr" top: "fc_attr" }}
layer {{ name: "attr_score" type: "InnerProduct" bottom: "fc_attr" top: "attr_score"
  inner_product_param {{ num_output: {ATTRIBUTES} }} }}
layer {{ name: "attr_prob" type: "Softmax" bottom: "attr_score" top: "attr_prob" }}
"""


def convolution(bottom: str, place: str, channels: int, size: int = 1, relu: str = "") -> str:
    """Return a convolution of res5 without bias, its BatchNorm and Scale, and perhaps a ReLU."""
    top = f"res{place}"
    shape = "kernel_size: 3 dilation: 2 pad: 2" if size == 3 else "kernel_size: 1"
    layers = [
        f'name: "{top}" type: "Convolution" bottom: "{bottom}" top: "{top}"'
        f" convolution_param {{ num_output: {channels} {shape} bias_term: false }}",
        f'name: "bn{place}" type: "BatchNorm" bottom: "{top}" top: "{top}" batch_norm_param {{ use_global_stats: true }}',
        f'name: "scale{place}" type: "Scale" bottom: "{top}" top: "{top}" scale_param {{ bias_term: true }}',
        *([f'name: "{top}_relu" type: "ReLU" bottom: "{top}" top: "{top}"'] if relu else []),
    ]
    return "".join(f"layer {{ {layer} }}\n" for layer in layers)


def res5() -> str:
    """Return the last stage, on each roi: three blocks, the first with a convolution in parallel."""
    text, bottom = convolution("roipool5", "5a_branch1", 2048), "roipool5"
    for block, beside in (("5a", "res5a_branch1"), ("5b", "res5a"), ("5c", "res5b")):
        text += convolution(bottom, f"{block}_branch2a", 512, relu="relu")
        text += convolution(f"res{block}_branch2a", f"{block}_branch2b", 512, 3, relu="relu")
        text += convolution(f"res{block}_branch2b", f"{block}_branch2c", 2048)
        bottom = f"res{block}"
        text += f'layer {{ name: "{bottom}" type: "Eltwise" bottom: "{beside}" bottom: "{bottom}_branch2c" top: "{bottom}" }}\n'
        text += f'layer {{ name: "{bottom}_relu" type: "ReLU" bottom: "{bottom}" top: "{bottom}" }}\n'
    return text


def prototxt() -> str:
    """Return the net: py-R-FCN's layers up to res4b22, then the published ones."""
    text = TRUNK.read_text()
    return text[: text.index('layer {\n    bottom: "res4b22"\n    top: "res5a_branch1"')] + HEAD % res5()


def make(folder: Path, *, brief: bool) -> None:
    """Write the net, its weights and its settings."""
    (folder / "test.prototxt").write_text(prototxt())
    fewer = ", RPN_POST_NMS_TOP_N: 40, SCALES: [240]" if brief else ""
    (folder / "net.yml").write_text(SETTINGS % fewer)
    net = Net(folder / "test.prototxt", TEST)
    randomize(net, 1)
    for name in ("cls_score", "attr_score"):
        net.params[name][0].data[...] *= SPREAD  # else all scores are nearly the same, and none reaches the threshold
    net.save(folder / "net.safetensors")


def outputs(folder: Path) -> dict[str, np.ndarray]:
    """Return the net's values on the scene, and the boxes in its pixels."""
    settings = read_settings(folder / "net.yml")
    net = Net(folder / "test.prototxt", TEST, weights=folder / "net.safetensors", settings=settings, keep="outputs")
    wanted = ("rois", "cls_prob", "attr_prob", "pool5_flat")
    for name, array in zip(("data", "im_info"), prepare_image(load_image(SCENE), settings), strict=True):
        put_array(net, name, array)
    net.forward(blobs=list(wanted))
    found = {name: net.blobs[name].data.copy() for name in wanted}
    return {**found, "boxes": found["rois"][:, 1:5] / net.blobs["im_info"].data[0, 2]}


def best_scores(boxes: np.ndarray, scores: np.ndarray, most: float) -> np.ndarray:
    """Return for each box (R, 4) the highest of its scores (R, C) over the classes, without background, whose NMS keeps it.

    From the best score down, NMS keeps a box unless a kept one covers more than `most` of both. Corners belong to the box.
    """
    left, top, right, bottom = boxes.T
    areas = (right - left + 1) * (bottom - top + 1)
    wide = np.minimum(right[:, None], right) - np.maximum(left[:, None], left) + 1
    high = np.minimum(bottom[:, None], bottom) - np.maximum(top[:, None], top) + 1
    both = np.maximum(wide, 0) * np.maximum(high, 0)
    clash = both / (areas[:, None] + areas - both) > most
    best = np.zeros(len(boxes), scores.dtype)
    for of_class in scores.T[1:]:
        kept: list[int] = []
        for box in np.argsort(-of_class, kind="stable"):
            if not clash[box, kept].any():
                kept.append(box)
                best[box] = max(best[box], of_class[box])
    return best


def regions(best: np.ndarray, threshold: float, least: int, most: int) -> np.ndarray:
    """Return the boxes taken: those from the threshold on, or if these are too few or too many, the best ones."""
    taken = np.flatnonzero(best >= threshold)
    return taken if least <= len(taken) <= most else np.argsort(-best, kind="stable")[: least if len(taken) < least else most]


def compare(folder: Path, expected: dict[str, np.ndarray], best: np.ndarray, choice: tuple[float, int, int]) -> bool:
    """Return whether the command's file holds what is expected; prints what it holds."""
    threshold, least, most = choice
    words = [folder / "test.prototxt", folder / "net.safetensors", SCENE, "--cfg", folder / "net.yml", "--blob", "pool5_flat"]
    words += ["--threshold", threshold, "--min", least, "--max", most, "--out", folder / f"{threshold}-{least}-{most}"]
    ran = CliRunner().invoke(minicaffe, ["features", *map(str, words)])
    if ran.exit_code:
        print(ran.output)
        return False
    with np.load(folder / f"{threshold}-{least}-{most}" / "scene.npz") as file:
        stored = dict(file)
    taken = regions(best, threshold, least, most)
    classes, attributes = (1 + expected[name][taken, 1:].argmax(axis=1) for name in ("cls_prob", "attr_prob"))
    wanted = {
        "boxes": expected["boxes"][taken],
        "features": expected["pool5_flat"][taken],
        "class_scores": expected["cls_prob"][taken],
        "classes": classes,
        "attribute_scores": expected["attr_prob"][taken],
        "attributes": attributes,
    }
    apart = [name for name, array in wanted.items() if not np.array_equal(stored[name], array)]
    shapes = ", ".join(f"{name} {'x'.join(map(str, stored[name].shape))}" for name in wanted)
    print(f"threshold {threshold}, {least} to {most}: {(best >= threshold).sum()} reach it, {len(taken)} taken: {shapes}")
    if apart:
        print(f"  differ: {', '.join(apart)}")
    return not apart


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare minicaffe features with the original's algorithm.")
    parser.add_argument("--brief", action="store_true", help="40 rois of a smaller image")
    brief = parser.parse_args().brief
    start = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, brief=brief)
        expected = outputs(folder)
        best = best_scores(expected["boxes"], expected["cls_prob"], DetectionSettings().test.nms)
        good = sum(compare(folder, expected, best, choice) for choice in CHOICES)
    print(f"{good} of {len(CHOICES)} choices of regions are the original's; {time.process_time() - start:.0f} CPU seconds")
    return int(good < len(CHOICES))


if __name__ == "__main__":
    sys.exit(main())
