"""SegmentationEvaluate: how far the maps of an image overlap the true ones.

    overlap of a class = pixels where both exceed threshold / pixels where one does, 0 where both never do

Maps of another size are first made bytes (255 x, cut), resized bilinearly, and compared with 255 threshold, cut.
Source: eric612/MobileNet-YOLO's segmentation_evaluate_layer.cpp, whose INTER_AREA is in the place of a factor, and so has no
effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.image_bytes import resized
from minicaffe.layer import Layer

BLOCK = "segmentation_evaluate_param"


class SegmentationEvaluate(Layer):
    """The overlap of each class in the first image.

    bottom: probabilities (N, C, H, W); true maps (M, C, H', W'), 0 or 1. top: (1, 1, 1, C). No gradient.
    Raises LayerError without num_classes (whose value has no effect), for other shapes, and where maps of another size
    hold a number that is not from 0 to 1.
    """

    type = "SegmentationEvaluate"
    num_bottom = 2
    num_top = 1
    index_bottoms = (0, 1)
    param_block = (BLOCK,)
    weight_names = ()
    has_gradient = False
    copies = (1, 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.param.segmentation_evaluate_param.HasField("num_classes"):
            raise self.error("needs num_classes", BLOCK)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        maps, true = (blob.shape for blob in bottom)
        if len(maps) != 4 or len(true) != 4 or maps[1] != true[1] or not (bottom[0].count and bottom[1].count):
            raise self.error(f"takes maps (N, C, H, W) and as many true ones of an image, got {maps} and {true}", "bottom[1]")
        top[0].reshape(1, 1, 1, maps[1])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        maps, threshold = bottom[0].data[0], self.dtype.type(self.param.segmentation_evaluate_param.threshold)
        true = bottom[1].data[0] > threshold
        if maps.shape == true.shape:
            found = maps > threshold
        else:
            if not ((maps >= 0) & (maps <= 1)).all():
                raise self.error("maps of another size than the true ones must be from 0 to 1", "bottom[0]")
            pixels = (maps * 255).astype(np.uint8)
            found = np.stack([resized(one[..., None], *true.shape[1:])[..., 0] for one in pixels]) > int(threshold * 255)
        both, either = (found & true).sum(axis=(1, 2)), (found | true).sum(axis=(1, 2))
        top[0].data[0, 0, 0] = both / np.maximum(either, 1)
