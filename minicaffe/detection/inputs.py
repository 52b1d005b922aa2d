"""A net's inputs, filled from files or with seeded values, and the outputs that commands read."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, numbers
from minicaffe.data.images import load_image, prepare_image, resize_bilinear
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error, in_brackets, missing, unread, ways
from minicaffe.files import granted
from minicaffe.formats.arrays import read_npy
from minicaffe.layer import Layer
from minicaffe.layers.conv.inner_product import Embed
from minicaffe.layers.forks.caffemex import Mask
from minicaffe.layers.loss.multinomial_logistic_loss import HingeLoss, MultinomialLogisticLoss
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.metric.accuracy import Accuracy
from minicaffe.layers.proposal.dynamic_tops import dynamic_rois
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.recurrent.base import Recurrent
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.shape.items import BatchReindex
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net


@dataclass(frozen=True)
class Order:
    """The order of an image's channels and axes in a net's input. rgb: red first. columns_first: (N, 3, W, H), as in MTCNN."""

    rgb: bool = False
    columns_first: bool = False


PLAIN = Order()
LABELLED = (Accuracy, HingeLoss, MultinomialLogisticLoss, SoftmaxWithLoss)
"""Layers whose second bottom is class indices."""


def fill_inputs(
    net: Net,
    files: Mapping[str, str],
    *,
    seed: int = 0,
    settings: DetectionSettings | None = None,
    factor: float = 1.0,
    until: str | None = None,
    order: Order = PLAIN,
) -> list[str]:
    """Fill every input blob of net. Return a note for each that got made-up values, if a layer up to `until` reads it.

    files: blob name -> .npy (the blob takes its shape) or an image. In a net with an im_info input an image is scaled as
    in py-faster-rcnn and fills im_info too; in any other net it is resized to the blob's height and width.
    settings: the image's scale and pixel means, blue first (default: the net's). order: of channels and axes. factor:
    multiplies an image after the means are off.
    Raises Error for unknown inputs and unusable files.
    """
    for name in files:
        if name not in net.inputs:
            raise Error(f'"{name}" is not an input of the net; its inputs are {", ".join(net.inputs) or "none"}')
    filled = set()
    for name, file in files.items():
        if Path(file).suffix.lower() == ".npz":
            raise Error(f'input "{name}": {file} holds arrays by name; an input takes one array (.npy) or an image')
        if Path(file).suffix.lower() == ".npy":
            put_array(net, name, read_npy(file))
            filled.add(name)
        else:
            put = _put_image(net, name, file, settings or net.settings, order)
            net.blobs[name].data[...] *= net.dtype.type(factor)
            filled |= put
    random = np.random.default_rng(seed)
    notes = {name: _make_up(net, name, random, seed) for name in net.inputs if name not in filled}
    read = net.inputs if until is None else _read_up_to(net, until)
    return [note for name, note in notes.items() if name in read]


def _read_up_to(net: Net, until: str) -> set[str]:
    """Return the blobs that the layers up to `until` read, except through a Split for later layers."""
    layers = [layer for layer in net.layers[: net.index_of(until) + 1] if not isinstance(layer, Split)]
    copied = copied_by_splits(net)
    return {copied.get(name, name) for layer in layers for name in net.bottom_names[layer.name]}


def copied_by_splits(net: Net) -> dict[str, str]:
    """Return, for each top of a Split, the blob that it copies."""
    return {top: node.bottom_names[0] for node in net.nodes if isinstance(node.layer, Split) for top in node.top_names}


def start_backward(net: Net, end: str | None = None) -> None:
    """Prepare a backward from layer end (default: the last), starting from the losses.

    A net without a loss starts from ones at that layer's tops (default: the outputs). It then computes the inputs' gradients
    too.
    """
    if not any(net.blob_loss_weights.values()):
        net.force_backward()  # without a loss, Caffe's rule computes no gradient
    net.clear_param_diffs()
    for name in net.top_names[end] if end else net.outputs:
        if not net.blob_loss_weights[name]:
            net.blobs[name].diff[...] = 1


def put_array(net: Net, name: str, array: NDArray[Any]) -> None:
    """Copy an array into an input blob, which takes the array's shape."""
    values = numbers(name, array)
    net.blobs[name].reshape(values.shape)  # forward reshapes the other blobs
    net.blobs[name].data[...] = values


def image_inputs(net: Net) -> list[str]:
    """Return the inputs that an image fits: (N, 3, H, W) or (N, 1, H, W)."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    return [name for name, shape in shapes.items() if len(shape) == 4 and shape[1] in (1, 3)]


def image_input(net: Net, whose: str) -> str:
    """Return the first input that an image fits. whose: the error's first words. Raises Error if there is none."""
    for name in image_inputs(net):
        return name
    if net.inputs:
        raise Error(f"{whose}: the net has no input for an image; its inputs are {', '.join(net.inputs)}")
    hint = "is it for training? Give its deploy prototxt; `minicaffe rescue` makes one of a .caffemodel"
    raise Error(f"{whose}: the net has no input for an image, nor any other ({hint})")


def _put_image(net: Net, name: str, file: str, settings: DetectionSettings, order: Order) -> set[str]:
    shape = net.blobs[name].shape
    if not os.path.exists(file) or os.path.isdir(file):
        given = f'input "{name}": {file or "its file, of which no name is given"}'
        raise Error(f"{given}: {'this is a folder' if os.path.isdir(file) else missing(file)}")
    if name not in image_inputs(net):
        raise Error(f'input "{name}" of shape {shape} cannot hold the image {file}: it needs (N, 3, H, W) or (N, 1, H, W)')
    return put_image(net, name, load_image(file), settings, order)


def put_image(net: Net, name: str, image: NDArray[np.uint8], settings: DetectionSettings, order: Order = PLAIN) -> set[str]:
    """Put an image (H, W, 3), blue, green, red, into an input (N, 3, H, W) or (N, 1, H, W), and fill im_info if present.

    Return the names of the filled inputs.
    """
    shape = net.blobs[name].shape
    if 0 in shape:
        raise Error(f'input "{name}" of shape {shape} has no pixels: give it another shape')
    if order.rgb:
        image, settings = image[..., ::-1], replace(settings, pixel_means=settings.pixel_means[::-1])
    if "im_info" in net.inputs:
        if order.columns_first:
            raise Error(f'input "{name}": a net with im_info takes rows first{in_brackets("leave out --axes wh")}')
        put_scaled(net, name, image, settings)
        return {name, "im_info"}
    if order.columns_first:
        pixels = resize_bilinear(image, shape[3], shape[2], means=settings.pixel_means).transpose(1, 0, 2)
    else:
        pixels = resize_bilinear(image, shape[2], shape[3], means=settings.pixel_means)
    planes = pixels.transpose(2, 0, 1) if shape[1] == 3 else pixels.mean(axis=2, keepdims=True).transpose(2, 0, 1)
    put_array(net, name, np.broadcast_to(planes, (shape[0], *planes.shape)))
    return {name}


def put_scaled(net: Net, name: str, image: NDArray[np.uint8], settings: DetectionSettings) -> NDArray[np.float32]:
    """Put an image (H, W, 3), scaled as the settings say, into an input, and fill im_info if present. Return im_info."""
    data, im_info = prepare_image(image, settings)
    put_array(net, name, data)
    if "im_info" in net.inputs:
        if net.blobs["im_info"].shape == (1, 6) and settings.test.scale_multiple_of == 1:
            way = ways(": give --cfg a file with TEST: {SCALE_MULTIPLE_OF: 32}")
            text = f"im_info has 6 numbers, as in PVANETs, which need images with sides that are multiples of 32{way}"
            warnings.warn(text, stacklevel=2)
        put_array(net, "im_info", im_info)
    return im_info


def _make_up(net: Net, name: str, random: np.random.Generator, seed: int) -> str:
    """Fill one input with values that fit its name and the layers that read it. Return a note on it."""
    blob = net.blobs[name]
    readers = _readers(net, name)
    height, width = _image_size(net)
    if (name == "im_info" or any(isinstance(layer, Proposal) and i == 2 for layer, i in readers)) and blob.count == 3:
        blob.data.reshape(-1)[:] = (height, width, 1)
        return f"input {name} not given: height {height}, width {width}, scale 1"
    if (name == "rois" or any(isinstance(layer, RoiLayer) and i == 1 for layer, i in readers)) and blob.count % 5 == 0:
        corners = random.uniform(0, [width, height], (blob.count // 5, 2, 2))
        rois = blob.data.reshape(-1, 5)
        rois[:, 0], rois[:, 1:3], rois[:, 3:] = 0, corners.min(axis=1), corners.max(axis=1)  # all on image 0
        return f"input {name} not given: {len(rois)} random boxes in {width} x {height} pixels (seed {seed})"
    below = next((rows for layer, i in readers if (rows := _whole_numbers(net, layer, i)) is not None), None)
    if below is not None:
        blob.data[...] = random.integers(0, max(below, 1), blob.shape)
        return f"input {name} not given: random whole numbers below {below} of shape {blob.shape} (seed {seed})"
    if any(isinstance(layer, Recurrent) and i == 1 for layer, i in readers):
        blob.data[...] = 1
        blob.data[:1] = 0
        return f"input {name} not given: 0 at the first step of each sequence, then 1, of shape {blob.shape}"
    if "label" in name or any(isinstance(layer, LABELLED) and i == 1 for layer, i in readers):
        blob.data[...] = 0
        return f"input {name} not given: zeros of shape {blob.shape}"
    random.standard_normal(out=blob.data, dtype=blob.dtype.type)
    return f"input {name} not given: standard normal values of shape {blob.shape} (seed {seed})"


def _whole_numbers(net: Net, layer: Layer, i: int) -> int | None:
    """Return how many whole numbers, from 0, bottom i may hold if it holds indices or a mask; else None."""
    if isinstance(layer, Embed) and i == 0:
        return int(layer.param.embed_param.input_dim)
    if isinstance(layer, BatchReindex) and i == 1:
        return net.blobs[net.bottom_names[layer.name][0]].shape[0]
    return 2 if isinstance(layer, Mask) and i == 1 else None


def _readers(net: Net, name: str) -> list[tuple[Layer, int]]:
    """Return the layers that read an input, also after an inserted Split, each with the index of the bottom."""
    blob = net.blobs[name]
    return [
        (node.layer, i)
        for node in net.nodes
        for i, bottom in enumerate(node.bottoms)
        if bottom.shares_data_with(blob) and not isinstance(node.layer, Split)
    ]


def _image_size(net: Net) -> tuple[int, int]:
    """Return the height and width of the net's image in pixels.

    They are a ROI layer's map over its scale, or else the first 4-axis input's.
    """
    inputs = [net.blobs[name] for name in net.inputs]
    for node in net.nodes:
        for block in node.layer.param_block if isinstance(node.layer, RoiLayer) else ():
            given = any(node.bottoms[0].shares_data_with(blob) for blob in inputs)
            if node.layer.param.HasField(block) and given:  # type: ignore[arg-type]
                scale = getattr(node.layer.param, block).spatial_scale
                height, width = node.bottoms[0].shape[2:]
                return round(height / scale), round(width / scale)
    for name in net.inputs:
        if len(net.blobs[name].shape) == 4:
            return net.blobs[name].shape[2], net.blobs[name].shape[3]
    return 600, 1000


def input_width(net: Net, width: int) -> float:
    """Return the width, without padding, of the net's input for an image of this width."""
    if "im_info" in net.inputs and net.blobs["im_info"].count >= 3:
        return float(net.blobs["im_info"].read_data().reshape(-1)[2]) * width  # im_info: height, width, scale
    for name in net.inputs:
        if len(net.blobs[name].shape) == 4:
            return float(net.blobs[name].shape[3])
    return float(width)


def image_scale(net: Net, width: int) -> NDArray[np.float32]:
    """Return the scale of the net's input for an image of this width: one for both axes (1,).

    With SCALE_MULTIPLE_OF, where im_info has six numbers, it is those of x, y, x and y (4,).
    """
    if "im_info" in net.inputs and net.blobs["im_info"].count == 6:
        return net.blobs["im_info"].read_data().reshape(-1)[2:].astype(np.float32)
    return np.array([input_width(net, width) / width], np.float32)


def only_output(net: Net, file: str, found: Sequence[str], what: str) -> str:
    """Return the only output in `found`, those that hold a command's data. Raises Error for none and for several."""
    if len(found) == 1:
        return found[0]
    said = f"{len(found)} outputs that hold" if found else "no output that holds"
    way = ways(": choose one with --blob")
    outputs = ", ".join(f"{name} {'x'.join(map(str, net.blobs[name].shape))}" for name in net.outputs)
    raise Error(f"{file}: {said} {what}; its outputs are {outputs}{way}")


def proposal_sources(net: Net) -> list[str]:
    """Return the blobs that the net's proposals are made of: the bottoms of layers that make rois."""
    made = (name for layer in net.layers if dynamic_rois(layer) for name in net.bottom_names[layer.name])
    return [name for name in dict.fromkeys(made) if name not in net.inputs]


def check_scores(scores: Array, name: str = "", what: str = "scores") -> None:
    """Raise Error for scores that are NaN or infinite. name: their blob; what: its content, for the error."""
    if not np.isfinite(scores).all():
        where = f' in "{name}"' * bool(name)
        raise Error(f"the net gives {what} that are NaN or infinite{where}: minicaffe.check_finite finds the first such layer")


def proposals_file(folder: str | os.PathLike[str], image: Path) -> Path:
    """Return the file in a folder with the proposals of an image."""
    return Path(folder) / f"{image.stem}.npy"


def read_proposals(source: str | None, image: Path) -> NDArray[Any] | None:
    """Return the boxes (R, 4) for an image, from a .npy file, or from the file with the image's name in a folder."""
    if source is None:
        return None
    path = proposals_file(source, image) if Path(source).is_dir() else Path(source)
    try:
        boxes = read_npy(granted(path, namer="a link"))
    except OSError as error:
        raise Error(unread(str(path), f"cannot read the proposals of {image}", error)) from error
    if boxes.dtype.kind not in "iuf" or boxes.ndim != 2 or boxes.shape[1] != 4:
        raise Error(f"{path}: proposals must be x1, y1, x2, y2 of shape (R, 4), got {boxes.dtype} of shape {boxes.shape}")
    return boxes
