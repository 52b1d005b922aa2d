"""A small detector that reads its rois, its weights, and images, for tests of `minicaffe detect`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import Net, set_random_seed
from minicaffe.cli import main
from minicaffe.mode import TEST

DETECTOR = """name: "detector"
input: "data" input_shape { dim: 1 dim: 3 dim: 64 dim: 96 }
input: "rois" input_shape { dim: 1 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 stride: 16 pad: 1 weight_filler { type: "gaussian" std: 0.01 } } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_w: 2 pooled_h: 3 spatial_scale: 0.0625 } }
layer { name: "score" type: "InnerProduct" bottom: "pool" top: "score"
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "bbox_pred" type: "InnerProduct" bottom: "pool" top: "bbox_pred"
  inner_product_param { num_output: 16 weight_filler { type: "gaussian" std: 0.001 } } }
layer { name: "cls_prob" type: "Softmax" bottom: "score" top: "cls_prob" }
"""

ARGUMENTS = (
    "detect detector.prototxt detector.caffemodel --proposals boxes.npy --classes names.txt --threshold 0.05 --scale 100"
).split()
"""The arguments before the images."""


def detect(*arguments: object) -> Result:
    """Run `minicaffe detect` in this process, in a folder of make_folder."""
    return CliRunner().invoke(main, [*ARGUMENTS, *map(str, arguments)])


def make_folder(folder: Path, count: int = 7, seed: int = 1) -> None:
    """Write the net, weights from this seed, boxes, class names, and photos/0.png, ... of different sizes; 3.png is invalid."""
    set_random_seed(seed)
    (folder / "detector.prototxt").write_text(DETECTOR)
    Net(folder / "detector.prototxt", TEST).save(folder / "detector.caffemodel")
    np.save(folder / "boxes.npy", np.array([[3, 4, 40, 30], [10, 8, 60, 44], [0, 0, 71, 47.0]]))
    (folder / "names.txt").write_text("circle\nsquare\ntriangle\n")
    (folder / "photos").mkdir(exist_ok=True)
    random = np.random.default_rng(2)
    for i in range(count):
        pixels = random.integers(0, 255, (48 + 2 * i, 70 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i}.png")
    (folder / "photos" / "3.png").write_bytes(b"no picture")


def finished(result: Result) -> bool:
    """Return whether all images were tried: the folder's fourth file is no image, and the output names it."""
    failed = result.exit_code == 1 and result.stderr.splitlines()[-1].endswith("images failed: see the column error")
    return result.exit_code == 0 or failed
