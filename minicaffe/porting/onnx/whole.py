"""A whole detector as a model: photo in, boxes out; or one of these ends alone.

whole = Whole(threshold=0.5)                             both ends
export_onnx(net, "detector.onnx", whole=whole)
compare_with_detect(net, "detector.onnx", photo, whole)

The photo is prepared with detect's arithmetic, so that the values are the same:

    image (H, W, 3) uint8, blue, green, red -> minus the means -> scaled -> data (1, 3, H', W') and im_info
    of an SSD net: image -> resized to the net's input in fixed point -> minus the means, times the factor -> data

Boxes are those of detect: boxes (n, 4) in pixels of the photo, scores (n,) and classes (n,), best first:

    rois, cls_prob, bbox_pred -> moved by bbox_pred, clipped -> per class: score > threshold, NonMaxSuppression -> the best
    of an SSD net: DetectionOutput's rows -> score >= threshold -> the best, in pixels, clipped
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Arrays
from minicaffe.data.images import prepare_image
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection import Detector
from minicaffe.detection.detect import check_detector
from minicaffe.detection.family import SSD_MEANS
from minicaffe.detection.rows import prepare_ssd_image
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, difference, matched

from .detection import LAST, clipped, decoded
from .graph import Dims, Graph, Operand, Value
from .session import run_model

# The photo.


IMAGE = "image"


class Photo(NamedTuple):
    """Tensors: data (1, 3, H', W'), im_info (1, 3), and the photo's height and width, (1,) float32 each."""

    data: str
    im_info: str
    height: str
    width: str


def scaled_photo(g: Graph, settings: DetectionSettings) -> Photo:
    """Return data and im_info for the input `image`, as prepare_image makes them. Source: data/images.py."""
    test = settings.test
    old = [g("Shape", IMAGE, start=axis, end=axis + 1) for axis in (0, 1)]
    sizes = [g.cast(size, np.float64) for size in old]
    short, long = g("Min", *sizes), g("Max", *sizes)
    scale = g("Div", np.array([test.scales[0]], np.float64), short)
    too_long = g("Greater", g("Round", g("Mul", scale, long)), np.float64(test.max_size))
    scale = g("Where", too_long, g("Div", np.float64(test.max_size), long), scale)
    new = [g("Max", g("Round", g("Mul", size, scale)), np.float64(1)) for size in sizes]
    pixels = g("Sub", g.cast(IMAGE, np.float32), np.array(settings.pixel_means, np.float32))
    for axis in (0, 1):
        step = g("Div", np.float64(1), scale)
        at = g("Clip", _centres(g, new[axis], step), np.float64(0), g("Squeeze", g("Sub", sizes[axis], np.float64(1))))
        low = g("Floor", at)
        part = g("Unsqueeze", g.cast(g("Sub", at, low), np.float32), [1, 2] if axis == 0 else [0, 2])
        first, second = _neighbours(g, g.cast(low, np.int64), old[axis])
        before = g("Gather", pixels, first, axis=axis)
        pixels = g("Add", before, g("Mul", part, g("Sub", g("Gather", pixels, second, axis=axis), before)))
    info = g("Unsqueeze", g.cast(g("Concat", *new, scale, axis=0), np.float32), [0])
    height, width = (g.cast(size, np.float32) for size in old)
    return Photo(_planes(g, pixels), info, height, width)


def fitted_photo(g: Graph, size: Sequence[int], means: Sequence[float], factor: float) -> Photo:
    """Return data for the input `image` of an SSD net with this input size, as prepare_ssd_image makes it.

    Source: data/image_bytes.py.
    """
    old = [g("Shape", IMAGE, start=axis, end=axis + 1) for axis in (0, 1)]
    pixels = g.cast(IMAGE, np.int32)
    for axis in (1, 0):
        step = g("Div", g.cast(old[axis], np.float64), np.float64(size[axis]))
        at = g.cast(_centres(g, np.array([size[axis]], np.float64), step), np.float32)
        low = g("Floor", at)
        last = g.cast(g("Sub", old[axis], [1]), np.float32)
        outside = g("Or", g("Less", low, 0.0), g("GreaterOrEqual", low, last))
        part = g("Where", outside, 0.0, g("Sub", at, low))
        weight = g("Unsqueeze", g.cast(g("Round", g("Mul", part, 2048.0)), np.int32), [1, 2] if axis == 0 else [0, 2])
        start = g("Clip", g.cast(low, np.int64), 0, g("Squeeze", g("Sub", old[axis], [1])))
        pair = [g("Gather", pixels, place, axis=axis) for place in _neighbours(g, start, old[axis])]
        weights = [g("Sub", np.int32(2048), weight), weight]
        if axis == 1:
            pixels = g("Add", *(g("Mul", each, by) for each, by in zip(pair, weights)))
        else:  # values are not negative, so division equals a shift
            halves = [g("Mul", g("Div", each, np.int32(16)), by) for each, by in zip(pair, weights)]
            total = g("Add", *(g("Div", half, np.int32(1 << 16)) for half in halves))
            pixels = g("Div", g("Add", total, np.int32(2)), np.int32(4))
    centred = g("Sub", g.cast(pixels, np.float32), np.array(means, np.float32))
    height, width = (g.cast(side, np.float32) for side in old)
    return Photo(_planes(g, g("Mul", centred, np.float32(factor))), "", height, width)


def _centres(g: Graph, count: str | np.ndarray, step: str) -> str:
    """Return (i + 0.5) * step - 0.5, float64, for i below count (1,)."""
    index = g.arange(g("Squeeze", g.cast(count, np.int64)), np.float64)
    return g("Sub", g("Mul", g("Add", index, np.float64(0.5)), step), np.float64(0.5))


def _neighbours(g: Graph, low: str, size: str) -> tuple[str, str]:
    """Return the pixel low and the next one, at most the last."""
    return low, g("Min", g("Add", low, [1]), g("Sub", size, [1]))


def _planes(g: Graph, pixels: str) -> str:
    return g("Unsqueeze", g("Transpose", pixels, perm=[2, 0, 1]), [0])


# Boxes.


OUTPUTS = {"boxes": np.float32, "scores": np.float32, "classes": np.int64}


class Ends(NamedTuple):
    """The limits that decide which boxes are returned. height, width: tensors (1,) of the photo's."""

    height: str
    width: str
    threshold: float
    most: int


def detector_boxes(g: Graph, net: Net, values: Mapping[str, Value], scale: str, ends: Ends) -> list[str]:
    """Return boxes, scores and classes of a Faster R-CNN or R-FCN. scale: the image's, (1,)."""
    classes = net.blobs["cls_prob"].shape[1]
    scores = g("Transpose", g.columns(g.reshape(values["cls_prob"], [-1, classes]), 1, classes), perm=[1, 0])  # (C, R)
    rois = g("Div", g.columns(g.reshape(values["rois"], [-1, 5]), 1, 5), scale)
    per_class = g("Concat", [classes - 1], g("Shape", rois), axis=0)  # (3,): C, R, 4
    boxes = g("Expand", g("Unsqueeze", rois, [0]), per_class)
    if "bbox_pred" in net.blobs and net.settings.test.bbox_reg:
        boxes = decoded(g, g.reshape(boxes, [-1, 4]), g.reshape(_moves(g, net, values, classes, per_class), [-1, 4]))
    boxes = g("Reshape", clipped(g, g.reshape(boxes, [-1, 4]), ends.height, ends.width), per_class, allowzero=1)
    kept = g(
        "NonMaxSuppression",
        g("Add", boxes, LAST),
        g("Unsqueeze", scores, [1]),
        [2**31 - 1],
        np.array([net.settings.test.nms], np.float32),
        np.array([ends.threshold], np.float32),
    )
    at = g("Gather", kept, [0, 2], axis=1)  # class and roi, by class and then by score
    return _best(g, g("GatherND", boxes, at), g("GatherND", scores, at), g("Add", g.columns(at, 0, 1), 1), ends.most)


def _moves(g: Graph, net: Net, values: Mapping[str, Value], classes: int, per_class: str) -> str:
    """Return bbox_pred for each class but the background, (C, R, 4)."""
    found = net.blobs["bbox_pred"].count // max(net.blobs["bbox_pred"].shape[0], 1)
    if found not in (8, 4 * classes):
        raise Error(f"{net.file}: bbox_pred has {found} values for each roi; {classes} classes need {4 * classes}, or 8")
    table = g("Transpose", g.reshape(values["bbox_pred"], [-1, found // 4, 4]), perm=[1, 0, 2])
    agnostic = found == 8 != 4 * classes
    moves = g.columns(table, 1, 2 if agnostic else classes, axis=0)
    return g("Expand", moves, per_class)


def ssd_boxes(g: Graph, rows: Value, ends: Ends) -> list[str]:
    """Return boxes, scores and classes from DetectionOutput's rows."""
    table = g.reshape(rows, [-1, 7])
    label, score = (g("Squeeze", g.columns(table, i, i + 1), [1]) for i in (1, 2))
    wanted = g("And", g("GreaterOrEqual", label, 0.0), g("GreaterOrEqual", score, float(ends.threshold)))
    likely = g("Squeeze", g("NonZero", wanted), [0])
    table = g("Gather", table, likely, axis=0)
    sides = g("Concat", ends.width, ends.height, ends.width, ends.height, axis=0)
    corners = g("Mul", g.columns(table, 3, 7), sides)
    score, label = g("Gather", score, likely), g.cast(g.columns(table, 1, 2), np.int64)
    return _best(g, clipped(g, corners, ends.height, ends.width), score, label, ends.most)


def _best(g: Graph, boxes: str, scores: str, classes: str, most: int) -> list[str]:
    """Return the `most` best of boxes (n, 4), scores (n,), classes (n, 1)."""
    count: Operand = g("Shape", scores)
    best, order = g.several("TopK", 2, scores, g("Min", count, [most]), axis=0, largest=1, sorted=1)
    return [g("Gather", boxes, order, axis=0), best, g("Squeeze", g("Gather", classes, order, axis=0), [1])]


# Both ends.


SIZE = "image_size"
"""The input with the photo's height and width, in a model that gives boxes but takes no photo."""


@dataclass(frozen=True)
class Whole:
    """The ends of a whole detector's model.

    photo: the model takes a photo, uint8 (H, W, 3), blue, green, red, as the input `image`. The net's settings define the scale
    and the means; for an SSD net, means and scale_factor do. boxes: the model returns boxes (n, 4) in pixels of the photo,
    scores (n,) and classes (n,), best first, like detect with this threshold and at most max_detections.
    """

    photo: bool = True
    boxes: bool = True
    threshold: float = 0.5
    max_detections: int = 100
    means: Sequence[float] = SSD_MEANS
    scale_factor: float = 1.0

    def check(self, net: Net, until: str | None) -> None:
        """Raise Error for a net that is no detector for one photo, or that cannot take photos of any size."""
        if until is not None:
            raise Error("--until does not work with --with-boxes and --with-image: leave out one or the other")
        is_ssd = ssd_layer(net) is not None
        if not is_ssd:
            check_detector(net)
            if "rois" in net.inputs:
                raise Error(f"{net.file}: this net takes rois, which a model cannot propose: export it without boxes and photo")
            if net.settings.test.scale_multiple_of > 1:
                raise Error(f"{net.file}: TEST.SCALE_MULTIPLE_OF is not supported with a photo or boxes: export the net alone")
        clash = [name for name in (IMAGE, SIZE, *OUTPUTS) if name in net.blobs]
        if clash:
            raise Error(f'{net.file}: a blob has the name "{clash[0]}", which is reserved for the model: rename it')

    def begin(self, g: Graph, net: Net, shapes: dict[str, Dims]) -> tuple[dict[str, Value], dict[str, Value], Photo]:
        """Return the model's own inputs, the values of the net's inputs, and the photo's tensors."""
        g.scope = "photo"
        ssd = ssd_layer(net)
        data = net.inputs[0] if ssd else "data"
        if not self.photo:
            height, width = (g.columns(SIZE, i, i + 1, axis=0) for i in (0, 1))
            given = {name: Value(name, shapes[name]) for name in net.inputs}
            size = {SIZE: Value(SIZE, (2,))} if self.boxes else {}
            return {**given, **size}, given, Photo(data, "" if ssd else "im_info", height, width)
        if ssd:
            photo = fitted_photo(g, net.blobs[data].shape[2:], self.means, self.scale_factor)
            made = {data: Value(photo.data, (1, *shapes[data][1:]))}
        else:
            if any(isinstance(dim, int) for dim in shapes[data][2:]):
                raise Error(f"{net.file}: it takes images of {shapes[data][2:]} only, and a photo is scaled to another size")
            photo = scaled_photo(g, net.settings)
            made = {data: Value(photo.data, shapes[data]), "im_info": Value(photo.im_info, (1, 3))}
        return {IMAGE: Value(IMAGE, (f"{IMAGE}_h", f"{IMAGE}_w", 3))}, made, photo

    def end(self, g: Graph, net: Net, values: dict[str, Value], photo: Photo) -> dict[str, Value]:
        """Return the outputs after the net."""
        g.scope = "detections"
        if lacking := [name for name in ("rois", "cls_prob") if name not in values and ssd_layer(net) is None]:
            raise Error(f'{net.file}: the boxes need the blob "{lacking[0]}", but no output depends on it')
        ends = Ends(photo.height, photo.width, self.threshold, self.max_detections)
        if layer := ssd_layer(net):
            made = ssd_boxes(g, values[net.top_names[layer.name][0]], ends)
        else:
            scale = g.columns(g.reshape(photo.im_info, [-1]), 2, 3, axis=0)
            made = detector_boxes(g, net, values, scale, ends)
        dims: list[Dims] = [("detections", 4), ("detections",), ("detections",)]
        return {name: Value(tensor, dim) for name, tensor, dim in zip(OUTPUTS, made, dims, strict=True)}

    def facts(self) -> dict[str, str]:
        """Return the model's metadata."""
        facts = {}
        if self.photo:
            facts[IMAGE] = "uint8 (height, width, 3): blue, green, red"
        if self.boxes:
            facts["boxes"] = "x1, y1, x2, y2 in pixels of the image, corners inclusive; best first"
            facts["threshold"] = f"{self.threshold:g}"
        return facts

    def inputs(self, net: Net, image: NDArray[np.uint8]) -> Arrays:
        """Return the model's inputs for an image (H, W, 3)."""
        if self.photo:
            return {IMAGE: image}
        size = {SIZE: np.array(image.shape[:2], np.float32)}
        if ssd_layer(net):
            name = net.inputs[0]
            return {name: prepare_ssd_image(image, net.blobs[name].shape[2:], self.means, self.scale_factor), **size}
        data, im_info = prepare_image(image, net.settings)
        return {"data": data, "im_info": im_info, **size}


def compare_with_detect(net: Net, path: str | os.PathLike[str], image: NDArray[np.uint8], whole: Whole) -> list[Difference]:
    """Run detect and the model on an image (H, W, 3), blue, green, red. Return Differences for boxes, scores and classes.

    Detections with nearly equal scores may swap: they are first brought into one order.
    """
    ssd: dict[str, Any] = {"means": whole.means, "scale_factor": whole.scale_factor} if ssd_layer(net) else {}
    found = Detector(net, threshold=whole.threshold, max_detections=whole.max_detections, **ssd)(image)
    made = run_model(path, whole.inputs(net, image))
    ours = np.concatenate([found.classes[:, None], found.boxes], axis=1)
    order, note = matched(ours, np.concatenate([made["classes"][:, None], made["boxes"]], axis=1), found.scores)
    theirs = made if order is None else {name: array[order] for name, array in made.items()}
    pairs: Arrays = {"boxes": found.boxes, "scores": found.scores, "classes": found.classes}
    return [difference(name, array, theirs[name], note) for name, array in pairs.items()]
