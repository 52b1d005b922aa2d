"""Detection of faces with an SSH, whose modules' boxes and scores are outputs of the net, one by one or joined.

    image -> means subtracted, short side 1200, long side <= 1600 -> net -> of each module boxes (R, 5), scores (R, 1)
          -> boxes in pixels of the image -> score > threshold, NMS of all modules together -> clipped to the image

Several TEST.SCALES are a pyramid: the image is scaled to a short side of 800, or less if the long side would exceed 1200,
then by each scale over 800. The boxes of all scales are suppressed together. The last scale leaves out the module of the
largest stride, which finds large faces.

Source: Najibi et al., SSH (arXiv:1708.03979); SSH/test.py and SSH/configs of mahyarnajibi/SSH.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import clip_boxes, rows
from minicaffe.data.images import image_blob, scale_for, scaled_by
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error
from minicaffe.layers.forks.ssh import SSHProposal
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.shape.concat import Concat
from minicaffe.net import Net

from .class_names import BACKGROUND
from .detect import Detections, Floats
from .family import Classes, Family, FindOptions
from .inputs import check_scores, put_array

PYRAMID = 800, 1200
"""The short side and the longest side that a pyramid's scales begin with: its PYRAMID_BASE_SIZE."""


class Ssh(Family):
    """SSHs, which find faces."""

    test_defaults = MappingProxyType({"scales": (1200,), "max_size": 1600})  # SSH's default_config.yml

    def matches(self, net: Net) -> bool:
        return bool(ssh_modules(net))

    def classes(self, net: Net) -> Classes:
        return Classes(2, "face", [BACKGROUND, "face"])

    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        settings = options.settings or net.settings
        passes = list(module_boxes(net, image, settings))
        boxes, scores = (np.concatenate(arrays) for arrays in zip(*passes, strict=True))
        dets = np.column_stack([boxes, scores])[scores > options.threshold]
        best = dets[nms(dets, settings.test.nms)[: options.max_detections]]
        found = clip_boxes(best[:, :4], image.shape[:2])
        return Detections(found, best[:, 4], np.ones(len(best), np.int64), best=float(scores.max(initial=0)))

    def size_text(self, settings: DetectionSettings) -> str:
        scales = settings.test.scales
        if len(scales) > 1:
            return f"a pyramid of {','.join(map(str, scales))} over {PYRAMID[0]}"
        return super().size_text(settings)

    def sides_multiple(self, settings: DetectionSettings) -> int:
        return 1


def ssh_modules(net: Net) -> list[list[str]]:
    """Return the boxes and the scores of each module of an SSH, the smallest stride first.

    Return [] for a net that has other inputs than data and im_info, or other outputs than its modules' tops, joined or not.
    """
    modules = [layer for layer in net.layers if isinstance(layer, SSHProposal)]
    tops = [net.top_names[layer.name] for layer in sorted(modules, key=lambda layer: layer.stride)]
    ends = {name for names in tops for name in names}
    for layer in net.layers:
        if isinstance(layer, Concat) and set(net.bottom_names[layer.name]) <= ends:
            ends |= set(net.top_names[layer.name])
    is_ssh = set(net.inputs) == {"data", "im_info"} and all(len(names) == 2 for names in tops) and set(net.outputs) <= ends
    return tops if is_ssh else []


def module_boxes(net: Net, image: NDArray[np.uint8], settings: DetectionSettings) -> Iterator[tuple[Floats, Floats]]:
    """Run the net at each scale. Yield boxes (R, 4), in pixels of the image, and scores (R,) of each module that counts."""
    modules, scales = ssh_modules(net), image_scales(image.shape[0], image.shape[1], settings)
    for i, scale in enumerate(scales):
        scaled = scaled_by(image, settings.pixel_means, scale)
        put_array(net, "data", image_blob([scaled]))
        put_array(net, "im_info", np.array([[*scaled.shape[:2], scale]], np.float32))
        net.forward(blobs=[name for names in modules for name in names])
        is_largest = len(scales) > 1 and i == len(scales) - 1
        for boxes, scores in modules[: len(modules) - is_largest]:
            of_boxes = rows(net.blobs[scores])[:, 0].copy()  # the next pass overwrites the blob
            check_scores(of_boxes, scores)
            yield (rows(net.blobs[boxes])[:, 1:5] / scale).astype(np.float32), of_boxes


def image_scales(height: int, width: int, settings: DetectionSettings) -> list[float]:
    """Return the scales of an image of this size: one, or those of a pyramid. Raises Error for SCALE_MULTIPLE_OF."""
    scales = settings.test.scales
    if settings.test.scale_multiple_of != 1:
        raise Error(f"TEST.SCALE_MULTIPLE_OF must be 1 for an SSH, got {settings.test.scale_multiple_of}")
    if len(scales) == 1:
        return [scale_for(height, width, scales[0], settings.test.max_size)]
    base = scale_for(height, width, *PYRAMID)
    return [scale / PYRAMID[0] * base for scale in scales]
