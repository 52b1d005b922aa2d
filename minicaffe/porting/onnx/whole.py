"""A whole detector as a model: the photo in, boxes out; each end alone, too.

whole = Whole(threshold=0.5)                             both ends
export_onnx(net, "detector.onnx", whole=whole)
compare_with_detect(net, "detector.onnx", photo, whole)
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Arrays
from minicaffe.data.images import prepare_image
from minicaffe.detection import Detector
from minicaffe.detection.detect import check_detector
from minicaffe.detection.families import family_of
from minicaffe.detection.family import SSD_MEANS
from minicaffe.detection.rows import prepare_ssd_image
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, difference, matched

from .boxes import OUTPUTS, Ends, detector_boxes, ssd_boxes
from .graph import Dims, Graph, Value
from .photo import IMAGE, Photo, fitted_photo, scaled_photo
from .session import run_model

SIZE = "image_size"
"""The input with the photo's height and width, in a model that gives boxes but takes no photo."""


@dataclass(frozen=True)
class Whole:
    """photo: the model takes a photo, uint8 (H, W, 3), blue, green, red, as the input `image`; the net's settings say how it is
    scaled and what is subtracted, for an SSD net means and scale_factor do.
    boxes: it gives boxes (n, 4) in pixels of the photo, scores (n,) and classes (n,), best first, as detect does with this
    threshold and at most max_detections.
    classes: the names of the classes, background included, for the model's metadata.
    """

    photo: bool = True
    boxes: bool = True
    threshold: float = 0.5
    max_detections: int = 100
    means: Sequence[float] = SSD_MEANS
    scale_factor: float = 1.0
    classes: Sequence[str] | None = None

    def check(self, net: Net, until: str | None) -> None:
        """Raises Error for a net that is no detector of one photo, or that cannot take photos of any size."""
        if until is not None:
            raise Error("a whole detector has no end: leave out --until, or --with-boxes and --with-image")
        is_ssd = ssd_layer(net) is not None
        if not is_ssd:
            check_detector(net)
            if "rois" in net.inputs:
                raise Error(f"{net.file}: this net takes rois, and no model proposes them: export it without boxes and photo")
            if net.settings.test.scale_multiple_of > 1:
                raise Error(f"{net.file}: a model scales both axes alike, not by TEST.SCALE_MULTIPLE_OF: export the net alone")
        clash = [name for name in (IMAGE, SIZE, *OUTPUTS) if name in net.blobs]
        if clash:
            raise Error(f'{net.file}: a blob has the name "{clash[0]}", which the model needs for itself: rename it')

    def begin(self, g: Graph, net: Net, shapes: dict[str, Dims]) -> tuple[dict[str, Value], dict[str, Value], Photo]:
        """(the model's own inputs, what stands for the net's inputs, the photo's tensors)."""
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
        """The outputs behind the net."""
        g.scope = "detections"
        if lacking := [name for name in ("rois", "cls_prob") if name not in values and ssd_layer(net) is None]:
            raise Error(f'{net.file}: no output of the net is computed from the blob "{lacking[0]}", which boxes come from')
        ends = Ends(photo.height, photo.width, self.threshold, self.max_detections)
        if layer := ssd_layer(net):
            made = ssd_boxes(g, values[net.top_names[layer.name][0]], ends)
        else:
            scale = g.columns(g.reshape(photo.im_info, [-1]), 2, 3, axis=0)
            made = detector_boxes(g, net, values, scale, ends)
        dims: list[Dims] = [("detections", 4), ("detections",), ("detections",)]
        return {name: Value(tensor, dim) for name, tensor, dim in zip(OUTPUTS, made, dims, strict=True)}

    def facts(self, net: Net) -> dict[str, str]:
        """The model's metadata. Without given classes, the names that detect has for the net's number of classes."""
        facts = {}
        if self.photo:
            facts[IMAGE] = "uint8 (height, width, 3): blue, green, red"
        if self.boxes:
            facts["boxes"] = "x1, y1, x2, y2 in pixels of the image, corners inclusive; best first"
            facts["threshold"] = f"{self.threshold:g}"
        if names := self.classes or (family_of(net).classes(net).names if self.boxes else None):
            facts["class_names"] = json.dumps(list(names))
        return facts

    def inputs(self, net: Net, image: NDArray[np.uint8]) -> Arrays:
        """The model's inputs for an image (H, W, 3)."""
        if self.photo:
            return {IMAGE: image}
        size = {SIZE: np.array(image.shape[:2], np.float32)}
        if ssd_layer(net):
            name = net.inputs[0]
            return {name: prepare_ssd_image(image, net.blobs[name].shape[2:], self.means, self.scale_factor), **size}
        data, im_info = prepare_image(image, net.settings)
        return {"data": data, "im_info": im_info, **size}


def compare_with_detect(net: Net, path: str | os.PathLike[str], image: NDArray[np.uint8], whole: Whole) -> list[Difference]:
    """Run detect and the model on an image (H, W, 3), blue, green, red: a Difference for boxes, scores and classes.

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
