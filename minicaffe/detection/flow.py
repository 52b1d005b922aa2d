"""The optical flow of a FlowNet: its prototxt's template filled in, and its output in pixels of the images."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.images import resize_bilinear
from minicaffe.errors import Error
from minicaffe.formats.flo import UNKNOWN
from minicaffe.formats.prototxt import fill_variables
from minicaffe.layers.data.image_data import ImageData
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

from .inputs import check_scores, image_inputs, only_output

DIVISOR = 64
"""ADAPTED sizes are multiples of this: FlowNets halve a map six times."""
FINAL = "predict_flow_final"
"""The published nets' last flow."""


def fill_template(text: str, height: int, width: int) -> str:
    """Return the prototxt of a deploy.prototxt.template for images of a size, filled in as by FlowNet 2's run-flownet.py.

    $TARGET_WIDTH$ is the image's width, $ADAPTED_WIDTH$ the next multiple of 64, and $SCALE_WIDTH$ the first divided by the
    second. The same holds for HEIGHT. PWC-Net's variables have no second $.
    """
    values: dict[str, object] = {}
    for side, size in (("WIDTH", width), ("HEIGHT", height)):
        adapted = -(-size // DIVISOR) * DIVISOR
        values |= {f"TARGET_{side}": size, f"ADAPTED_{side}": adapted, f"SCALE_{side}": size / adapted}
    return fill_variables(text, values)


def listed_image(param: caffe_pb2.LayerParameter, place: str, height: int, width: int) -> tuple[int, ...]:
    """Return the shape of images of this size that an ImageData reads from a list, as in PWC-Net.

    Raises Error for an ImageData that would change the images, and for another data layer.
    """
    data = param.image_data_param
    if class_of(param) is not ImageData or param.HasField("transform_param") or data.new_height or not data.is_color:
        raise Error(f'{place}: "{param.name}" changes its images: replace it with an Input')
    return 1, 3, height, width


def pair_inputs(net: Net, file: str) -> tuple[str, str]:
    """Return the inputs for the first and the second image. Raises Error."""
    names = image_inputs(net)
    if len(names) != 2:
        inputs = ", ".join(f"{name} {'x'.join(map(str, net.blobs[name].shape))}" for name in net.inputs) or "none"
        raise Error(f"{file}: a flow net has two inputs for images, but this net's inputs are {inputs}")
    return names[0], names[1]


def flow_blob(net: Net, wanted: str | None, file: str) -> str:
    """Return the output with the flow (1, 2, h, w): wanted, or predict_flow_final, or the only one. Raises Error."""
    if wanted:
        return wanted
    shapes = {name: net.blobs[name].shape for name in net.outputs}
    found = [name for name, shape in shapes.items() if len(shape) == 4 and shape[:2] == (1, 2)]
    return FINAL if FINAL in found else only_output(net, file, found, "a flow (1, 2, h, w)")


def flow_in_image(flow: Array, size: tuple[int, int], height: int, width: int) -> Array:
    """Return flow (2, h, w) as (2, height, width) in pixels of the image: resized, bilinear, its vectors scaled accordingly.

    size: the net's input, in whose pixels flow is. Raises Error for NaN and infinite flows.
    """
    check_scores(flow)
    both = resize_bilinear(np.ascontiguousarray(flow.transpose(1, 2, 0), np.float32), height, width)
    scaled: Array = (both * np.array([width / size[1], height / size[0]], np.float32)).transpose(2, 0, 1)
    return scaled


def end_point_error(flow: Array, truth: Array) -> float:
    """Return the mean distance between the ends of two flows (2, H, W), over the pixels whose truth is known.

    Raises Error if the sizes differ, or if the truth is known nowhere.
    """
    if flow.shape != truth.shape:
        (high, wide), (height, width) = flow.shape[1:], truth.shape[1:]
        raise Error(f"the flow is {wide} x {high} pixels, but the true one {width} x {height}")
    known = (np.abs(truth) <= UNKNOWN).all(axis=0)
    if not known.any():
        raise Error("the true flow has no known value")
    return float(np.hypot(*(flow - np.where(known, truth, 0)).astype(np.float64))[known].mean())
