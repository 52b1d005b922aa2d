"""MobileNet-YOLO's segmentation: its loss and its metric."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.image_bytes import resized
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import DifferenceLoss, check_same_size
from minicaffe.layers.neuron.functions import sigmoid


class YoloSeg(DifferenceLoss):
    """The squared distance of sigmoids from targets, averaged over images.

        loss = object_scale^2 sum (sigmoid(x) - t)^2 / N        dx = 2 object_scale^2 (sigmoid(x) - t) sigmoid'(x) / N

    Source: eric612/MobileNet-YOLO's yolo_seg.cpp.

    bottom: x (N, ...) scores; targets, as many; a third is not read. top: loss (). The other fields of yolo_seg_param have no
    effect, as in the fork. Only x gets a gradient, that of the loss.
    Raises LayerError for targets of another size.
    """

    type = "YoloSeg"
    num_bottom = (2, 3)
    index_bottoms = (1, 2)
    param_block = ("yolo_seg_param",)
    copies = (2, 3)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_same_size(self, bottom, 1)
        self.difference.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scale = self.param.yolo_seg_param.object_scale
        sigmoid(bottom[0].data, out=self.difference.data)
        self.difference.data[...] -= bottom[1].data.reshape(bottom[0].shape)
        flat = self.difference.data.reshape(-1)
        top[0].data[...] = scale**2 * float(flat @ flat) / max(1, bottom[0].shape[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            scale, y = self.param.yolo_seg_param.object_scale, sigmoid(bottom[0].data)
            slope = 2 * scale**2 * top[0].diff.item() / max(1, bottom[0].shape[0])
            np.multiply(self.difference.data, y * (1 - y) * bottom[0].data.dtype.type(slope), out=bottom[0].diff)


BLOCK = "segmentation_evaluate_param"


class SegmentationEvaluate(Layer):
    """The overlap of each class's predicted and true maps in the first image.

        overlap of a class = pixels where both exceed threshold / pixels where one does, 0 where both never do

    Maps of another size are first made bytes (255 x, cut), resized bilinearly, and compared with 255 threshold, cut.
    Source: eric612/MobileNet-YOLO's segmentation_evaluate_layer.cpp, whose INTER_AREA is in the place of a factor, and so has
    no effect.

    bottom: probabilities (N, C, H, W); true maps (M, C, H', W'), 0 or 1. top: (1, 1, 1, C). No gradient.
    Raises LayerError without num_classes (whose value has no effect), for other shapes, and where maps of another size
    hold a number that is not from 0 to 1.
    """

    type = "SegmentationEvaluate"
    num_bottom = 2
    num_top = 1
    param_block = (BLOCK,)
    weight_names = ()
    has_gradient = False

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
