"""Compare nets with their torch Modules, forward and backward, and print the largest differences.

    python tests/torch_models.py [--single] [--match TEXT]

The nets: those of examples/shapes with their weights; ZF, VGG16 and the R-FCN of ResNet-50 (../shared/models) at 224x320 with
seeded random weights, in float64: in float32 (--single) a rounding more or less moves a maximum, or a sign before a ReLU,
and with it a part of the gradient. A difference is relative to the largest number of its blob or gradient. The exit
status is 1 where one is above 1e-5. --single also says how far each of the two is from float64, where that net is given the
side's own rois, which is whose error the difference is; its exit status is 1 where ours is above 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from published_models import randomize
from support.torch_beside import differences, from_float64

from minicaffe import TEST, Net

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT.parent / "shared" / "models"
SHAPES = ROOT / "examples" / "shapes"
NETS = {
    "shapes, R-FCN": (SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel"),
    "shapes, Faster R-CNN": (
        SHAPES / "faster_rcnn" / "test.prototxt",
        SHAPES / "faster_rcnn" / "shapes_faster_rcnn.caffemodel",
    ),
    "ZF": (MODELS / "py-faster-rcnn/pascal_voc/ZF/faster_rcnn_end2end/test.prototxt", None),
    "VGG16": (MODELS / "py-faster-rcnn/pascal_voc/VGG16/faster_rcnn_end2end/test.prototxt", None),
    "ResNet-50, R-FCN": (MODELS / "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/class-aware/test.prototxt", None),
}


def made(name: str, dtype: type[np.floating]) -> Net:
    """Return a net with its weights and inputs, and gradients everywhere."""
    path, weights = NETS[name]
    net = Net(path, TEST, weights=weights, dtype=dtype)
    random = np.random.default_rng(1)
    if weights is None:
        randomize_as(net)
    for i, blob in enumerate(net.inputs):
        net.blobs[blob].reshape(*((1, 3, 224, 320) if i == 0 else (1, 3)))
        net.blobs[blob].data[...] = random.normal(0, 50, (1, 3, 224, 320)) if i == 0 else [224, 320, 1]
    net.force_backward()
    return net


def randomize_as(net: Net) -> None:
    """published_models.randomize, which fills float32."""
    if net.dtype == np.float32:
        randomize(net, 0)
        return
    single = Net(net.file, TEST)
    randomize(single, 0)
    for name, blobs in single.params.items():
        for mine, other in zip(net.params[name], blobs, strict=True):
            mine.data[...] = other.data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--single", action="store_true", help="compute in float32")
    parser.add_argument("--match", default="", help="only nets with this in their name")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    worst_of_all = 0.0
    for name in NETS:
        if given.match not in name or not NETS[name][0].exists():
            continue
        started, worst = time.time(), {}
        net = made(name, np.float32 if given.single else np.float64)
        for what, difference in differences(net):
            worst[what] = max(worst.get(what, 0.0), difference)
        said = ", ".join(f"{what} {difference:.1e}" for what, difference in worst.items())
        if given.single:
            ours, theirs = from_float64(net, made(name, np.float64))
            said, worst = f"{said}, outputs from float64: ours {ours:.1e}, PyTorch's {theirs:.1e}", {"ours": ours}
        print(f"{name}: {said} ({time.time() - started:.0f} s)", flush=True)
        worst_of_all = max(worst_of_all, *worst.values())
    sys.exit(worst_of_all > 1e-5)


if __name__ == "__main__":
    main()
