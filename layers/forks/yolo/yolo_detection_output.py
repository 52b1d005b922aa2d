"""YoloDetectionOutput: YOLOv2's cells to detections, a box's score being sigmoid(t_o) times its best class's softmax.

The formula of boxes and suppression, and the source, are in yolo.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .yolo import YoloOutput, best_classes, cells_of, decoded, pairs


class YoloDetectionOutput(YoloOutput):
    """Detections (1, 1, n, 7), one a row: 0, class from 1, score, xmin, ymin, xmax, ymax (1 is the image's size). No gradient.

    bottom: one or two maps (N, num_box * (5 + num_classes), S, S), of each cell's boxes: x, y, w, h, objectness, classes. top:
    detections of all images together, best score first; without any, a row for each image, its number and then -1 throughout.
    yolo_detection_output_param: biases, the anchors' widths and heights in cells; confidence_threshold, the least score;
    nms_threshold, the overlap from which a box goes, whatever its image and class. side and label_map_file have no effect.
    Raises LayerError for shapes that do not match, a map that is not square, and another number of anchors than num_box.
    """

    type = "YoloDetectionOutput"
    num_bottom = (1, 2)
    index_bottoms = (0, 1)
    param_block = ("yolo_detection_output_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, block = self.param.yolo_detection_output_param, "yolo_detection_output_param"
        if not (param.num_classes and param.num_box):
            raise self.error("needs num_classes > 0 and num_box > 0", block)
        if param.coords != 4:
            raise self.error(f"coords must be 4, got {param.coords}", f"{block}.coords")
        self.sizes = pairs(self, param.biases, f"{block}.biases")
        if len(self.sizes) != param.num_box:
            raise self.error(f"{len(self.sizes)} anchors given in biases for num_box {param.num_box}", block)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param = self.param.yolo_detection_output_param
        self.check_cells(bottom, param.num_box, param.num_classes)
        for i, blob in enumerate(bottom):
            if blob.shape[2] != blob.shape[3]:
                raise self.error(f"bottom {i} must be square maps, got shape {blob.shape}", f"bottom[{i}]")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.put(bottom, top, self.param.yolo_detection_output_param.nms_threshold)

    def found(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array]:
        least, parts = self.param.yolo_detection_output_param.confidence_threshold, []
        for blob in bottom:
            cells = cells_of(blob.data, len(self.sizes))
            scores, best = best_classes(cells)
            which = scores >= least
            parts.append((decoded(cells, self.sizes, 1)[which], scores[which], best[which]))
        boxes, scores, classes = (np.concatenate(arrays) for arrays in zip(*parts))
        return boxes, np.arange(len(boxes)), scores, classes
