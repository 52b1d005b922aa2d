"""Detection of objects with a Cascade R-CNN, whose last DecodeBBox and last probabilities are outputs of the net.

    image -> short side 600, long side <= 1000, each rounded to a multiple of 32, or of TEST.SCALE_MULTIPLE_OF
          -> net -> boxes (R, 5), cls_prob (R, C)
          -> boxes in pixels of the image, clipped to it -> per class: score > threshold, NMS -> the best

Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); run_cascadercnn_voc.m of zhaoweicai/cascade-rcnn, which resizes
with a cubic filter. The boxes are those of the last stage; its probabilities are the mean over the stages where the net has
it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import clip_boxes, rows
from minicaffe.data.images import image_blob, resize_bilinear
from minicaffe.data.settings import DetectionSettings
from minicaffe.layers.forks.mscnn.cascade import DecodeBBox
from minicaffe.net import Net

from .class_names import default_names
from .detect import Detections, pick
from .family import Classes, Family, FindOptions
from .inputs import check_scores, image_inputs, put_array

MULTIPLE = 32
"""The number of which the input's height and width are multiples, unless TEST.SCALE_MULTIPLE_OF says another."""


class Cascade(Family):
    """Cascade R-CNNs."""

    def matches(self, net: Net) -> bool:
        return cascade_ends(net) is not None

    def classes(self, net: Net) -> Classes:
        _, scores = _ends(net)
        count = net.blobs[scores].shape[1]
        return Classes(count, scores, default_names(count))

    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        settings, ends = options.settings or net.settings, _ends(net)
        height, width = image.shape[:2]
        size = input_size(height, width, settings)
        put_array(net, net.inputs[0], image_blob([resize_bilinear(image, *size, means=settings.pixel_means)]))
        net.forward(blobs=list(ends))
        boxes = rows(net.blobs[ends[0]])[:, 1:5] / np.array([size[1] / width, size[0] / height] * 2, np.float32)
        scores = rows(net.blobs[ends[1]]).copy()
        check_scores(scores, ends[1])
        clipped = clip_boxes(boxes, (height, width))
        each = np.repeat(clipped[:, None], scores.shape[1], axis=1)
        nms, most = settings.test.nms, options.max_detections
        return pick(scores, each, nms_threshold=nms, threshold=options.threshold, max_detections=most)

    def sides_multiple(self, settings: DetectionSettings) -> int:
        return sides_multiple(settings)


def _ends(net: Net) -> tuple[str, str]:
    ends = cascade_ends(net)
    assert ends is not None, "asked for a net that matches"
    return ends


def cascade_ends(net: Net) -> tuple[str, str] | None:
    """Return the outputs with the last stage's boxes and probabilities; None unless net is a Cascade R-CNN for one image."""
    decoded = {top for node in net.nodes if isinstance(node.layer, DecodeBBox) for top in node.top_names}
    boxes = [name for name in net.outputs if name in decoded]
    if not boxes or net.inputs != image_inputs(net):
        return None
    count = net.blobs[boxes[-1]].shape[0]
    made = [name for node in net.nodes for name in node.top_names if name in net.outputs and name not in decoded]
    scores = [name for name in made if len(net.blobs[name].shape) >= 2 and net.blobs[name].shape[0] == count]
    probabilities = [
        name for name in scores if net.blobs[name].shape[1] > 1 and net.blobs[name].count == count * net.blobs[name].shape[1]
    ]
    return (boxes[-1], probabilities[-1]) if probabilities else None


def input_size(height: int, width: int, settings: DetectionSettings) -> tuple[int, int]:
    """Return the input's height and width.

    The short side is that of scales, each side is at most max_size, and both are rounded to the multiple.
    """
    scale, multiple = settings.test.scales[0] / min(height, width), sides_multiple(settings)
    sides = [min(scale * side, settings.test.max_size) / multiple for side in (height, width)]
    return multiple * max(int(sides[0] + 0.5), 1), multiple * max(int(sides[1] + 0.5), 1)


def sides_multiple(settings: DetectionSettings) -> int:
    """Return MULTIPLE, unless the settings give another number than 1."""
    given = settings.test.scale_multiple_of
    return given if given > 1 else MULTIPLE
