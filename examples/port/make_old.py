"""Make a model as Caffe wrote them in 2013 (V0: `layers { layer { type: "conv" } }`), small enough to be worked out by hand.

    python examples/port/make_old.py [FOLDER]     writes FOLDER/deploy.prototxt, net.caffemodel, stripes_*.png  [default: port]

The net tells which way stripes run: 0, 45, 90 or 135 degrees. Nothing is trained, the weights are written down here:
conv1 has a filter across the stripes of each direction, and its negative; conv2 adds the two in groups; the rest averages.
It has what old nets trip over: a padding layer, groups, LRN, ceil pooling that leaves a rest, dropout, four-axis legacy blobs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minicaffe.proto import caffe_pb2
from minicaffe.prototxt import parse_message

ANGLES = (0, 45, 90, 135)
HEIGHT, WIDTH = 46, 61

DEPLOY = f"""# the direction of stripes
name: "stripes"
input: "data"
input_dim: 1 input_dim: 3 input_dim: {HEIGHT} input_dim: {WIDTH}
layers {{ layer {{ name: "pad1" type: "padding" pad: 2 }} bottom: "data" top: "pad1" }}
layers {{ layer {{ name: "conv1" type: "conv" num_output: 8 kernelsize: 5 }} bottom: "pad1" top: "conv1" }}
layers {{ layer {{ name: "relu1" type: "relu" }} bottom: "conv1" top: "conv1" }}
layers {{ layer {{ name: "norm1" type: "lrn" local_size: 5 alpha: 0.0001 beta: 0.75 }} bottom: "conv1" top: "norm1" }}
layers {{ layer {{ name: "conv2" type: "conv" num_output: 4 kernelsize: 1 group: 4 }} bottom: "norm1" top: "conv2" }}
layers {{ layer {{ name: "pool2" type: "pool" pool: AVE kernelsize: 3 stride: 2 }} bottom: "conv2" top: "pool2" }}
layers {{ layer {{ name: "drop2" type: "dropout" dropout_ratio: 0.5 }} bottom: "pool2" top: "pool2" }}
layers {{ layer {{ name: "fc3" type: "innerproduct" num_output: 4 }} bottom: "pool2" top: "fc3" }}
layers {{ layer {{ name: "prob" type: "softmax" }} bottom: "fc3" top: "prob" }}
"""

Array = NDArray[np.float64]


def across(angle: float, y: Array, x: Array) -> Array:
    """How far a pixel lies across stripes that run at an angle (degrees, counterclockwise from the x axis)."""
    return x * np.sin(np.radians(angle)) + y * np.cos(np.radians(angle))


def filters() -> Array:
    """conv1's weight (8, 3, 5, 5): for each direction a wave across its stripes, and its negative; over all colours alike."""
    y, x = np.mgrid[-2:3, -2:3].astype(np.float64)
    fade = np.exp(-(x * x + y * y) / 4)
    waves = [np.sin(2 * np.pi * across(angle, y, x) / 6) * fade for angle in ANGLES]
    return np.stack([np.broadcast_to(sign * wave / 24, (3, 5, 5)) for wave in waves for sign in (1, -1)])


def weights() -> dict[str, list[Array]]:
    """The blobs of each layer, of four axes as Caffe stored them then."""
    height, width = -(-(HEIGHT - 3) // 2) + 1, -(-(WIDTH - 3) // 2) + 1  # of pool2, whose sizes are rounded up
    cells = height * width
    mean = np.repeat(np.eye(4), cells, axis=1) / cells / 5
    return {
        "conv1": [filters(), np.zeros((1, 1, 1, 8))],
        "conv2": [np.ones((4, 2, 1, 1)), np.zeros((1, 1, 1, 4))],
        "fc3": [mean[None, None], np.zeros((1, 1, 1, 4))],
    }


def old_model() -> caffe_pb2.NetParameter:
    """The net with its weights, as a V0 .caffemodel holds them."""
    model = parse_message(DEPLOY, caffe_pb2.NetParameter())
    stored = weights()
    for connection in model.layers:
        for array in stored.get(connection.layer.name, []):
            num, channels, height, width = array.shape
            connection.layer.blobs.add(num=num, channels=channels, height=height, width=width, data=array.ravel())
    return model


def stripes(angle: float, seed: int = 0) -> NDArray[np.uint8]:
    """A picture (HEIGHT, WIDTH, 3) of stripes 6 pixels apart, with noise."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    wave = 128 + 90 * np.sin(2 * np.pi * across(angle, y, x) / 6)
    noise = np.random.default_rng(seed).normal(0, 25, (HEIGHT, WIDTH, 3))
    picture: NDArray[np.uint8] = np.clip(wave[:, :, None] + noise, 0, 255).astype(np.uint8)
    return picture


def main(folder: str = "port") -> None:
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / "deploy.prototxt").write_text(DEPLOY, encoding="utf-8")
    (target / "net.caffemodel").write_bytes(old_model().SerializeToString())
    for angle in ANGLES:
        Image.fromarray(stripes(angle)).save(target / f"stripes_{angle}.png")
    print(f"written: {target / 'deploy.prototxt'}, net.caffemodel, stripes_0.png to stripes_135.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
