"""The detection heads alone: feature maps and rois in, pooled features or scores and box deltas out.

    python examples/heads/run.py

Each net's inputs are made up here, from a seed; put your own network's feature maps in their place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.mode import TEST
from minicaffe.net import Net

HERE = Path(__file__).parent
STRIDE = 16


def run(prototxt: str, rois: NDArray[Any], **maps: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Forward of one of the nets beside this file on feature maps (N, C, H, W) by name and rois (R, 5); its outputs.

    rois: batch index, x1, y1, x2, y2, in pixels of the input image, both corners inclusive.
    """
    net = Net(HERE / prototxt, TEST)
    inputs = {**maps, "rois": rois}
    for name, array in inputs.items():
        net.blobs[name].reshape(array.shape)
        net.blobs[name].data[...] = array
    return net.forward()


def some_rois(random: np.random.Generator, count: int, height: int, width: int) -> NDArray[np.float32]:
    """Boxes (count, 5) at random on an image whose feature map is height by width."""
    corners = random.uniform(0, 1, (count, 2, 2)) * [width * STRIDE - 1, height * STRIDE - 1]
    boxes = np.sort(corners, axis=1).reshape(count, 4)
    return np.concatenate([np.zeros((count, 1)), boxes], axis=1).astype(np.float32)


def main() -> None:
    random = np.random.default_rng(0)
    height, width = 38, 63
    rois = some_rois(random, 300, height, width)

    def some_map(channels: int) -> NDArray[np.float32]:
        return random.standard_normal((1, channels, height, width), np.float32)

    outputs = run("roi_pool5.prototxt", rois, conv5_3=some_map(512))
    outputs = outputs | run("psroi.prototxt", rois, rfcn_cls=some_map(21 * 49), rfcn_bbox=some_map(8 * 49))
    for name, array in outputs.items():
        print(f"{name:10} {array.shape}  min {array.min():.3f}  mean {array.mean():.3f}  max {array.max():.3f}")


if __name__ == "__main__":
    main()
