"""DetectionOutput: detections from SSD's predictions or, by the bottoms, from RefineDet's or YOLOv2's.

    boxes decoded from the priors -> per image and class: score > confidence_threshold, the top_k best, NMS -> per image
    the keep_top_k best of all classes

Source: Liu et al., SSD (arXiv:1512.02325); the SSD fork's detection_output_layer.cpp and bbox_util.cpp; for one
bottom caffe-yolov2's detection_output_layer.cpp.
"""

# forks/yolo/yolo_v2.py has caffe-yolov2's, and detection_files.py writes the files.

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import DataError, Error, ways
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind, NetFork
from minicaffe.layer import Layer
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.ssd.detection_files import MOST_CLASSES, DetectionPictures, pictures_asked
from minicaffe.proto import caffe_pb2
from minicaffe.registry import load

from .box_codes import decode, decode_images, read_priors, refined
from .detection_files import DetectionFiles, files_asked
from .detection_rows import image_detections, rows_of_classes

FIELDS_OF_CELLS = ("side", "num_box", "coords", "nms_threshold", "biases", "label_map_file")
"""The fields that only caffe-yolov2's layer has."""


class DetectionOutput(DynamicTops, Forked):
    """Detections (1, 1, n, 7), one a row: image, class, score, xmin, ymin, xmax, ymax (1 is the image's width or height).

    bottom: loc (N, P * 4 * L) box codes, L the classes, or 1 with share_location; conf (N, P * C) scores of the C classes;
    priors (1, 2, P * 4), as PriorBox makes them; a fourth, the images (N, C, H, W), is read by visualize alone. RefineDet's
    bottoms 3 and 4 are arm_conf (N, P * 2), whose second number is a prior's objectness, and arm_loc (N, P * 4), codes by which
    the priors are refined first; a prior with an objectness below objectness_score counts as background. top:
    detections, by image, class, and score, best first. Where no image has any: one row for each image, its number and then -1
    throughout. No gradients. save_output_param and visualize with save_file write files.
    With one bottom it is caffe-yolov2's.
    Raises LayerError for sizes that do not match, num_classes missing, eta outside (0, 1], nms_threshold < 0, and for files
    that cannot be read or written.
    """

    type = "DetectionOutput"
    num_bottom = (1, 5)
    num_top = 1
    param_block = ("detection_output_param", "transform_param")
    weight_names = ()
    has_gradient = False
    dynamic_axis = 2
    uses_kernels = ((decode_images, rows_of_classes), ())
    kinds = (
        Kind("SSD", ("ssd",), "3 or 4 bottoms"),
        Kind("RefineDet", ("refinedet",), "5 bottoms, or a fourth (N, P * 2)"),
        Kind("caffe-yolov2", ("yolov2",), "1 bottom"),
    )
    of_cells = False
    """True for caffe-yolov2's layer."""
    files: DetectionFiles | None = None
    pictures: DetectionPictures | None = None
    refines = False

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        if cls is DetectionOutput and len(param.bottom) == 1:
            return load("minicaffe.layers.forks.yolo.yolo_v2:CellDetectionOutput")
        return cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) < 3:
            takes = "takes loc, conf and priors as bottoms (SSD's), or one map of cells (YOLOv2's)"
            raise self.error(f"{takes}, got {len(bottom)}", "bottom")
        param = self.param.detection_output_param
        named = {field.name for field, _ in param.ListFields()}
        if foreign := [name for name in FIELDS_OF_CELLS if name in named]:
            wrong = f"{foreign[0]} is for one bottom (YOLOv2's), this is SSD's with {len(bottom)}"
            raise self.error(wrong, f"detection_output_param.{foreign[0]}")
        if not param.num_classes:
            raise self.error("needs num_classes > 0", "detection_output_param")
        if param.num_classes > MOST_CLASSES:
            wrong = f"num_classes must be at most {MOST_CLASSES}, got {param.num_classes}"
            raise self.error(wrong, "detection_output_param.num_classes")
        if param.nms_param.nms_threshold < 0:
            wrong = f"nms_threshold must be >= 0, got {param.nms_param.nms_threshold:g}"
            raise self.error(wrong, "detection_output_param.nms_param.nms_threshold")
        if not 0 < param.nms_param.eta <= 1:
            wrong = f"eta must be above 0 and at most 1, got {param.nms_param.eta:g}"
            raise self.error(wrong, "detection_output_param.nms_param.eta")
        self.refines = is_refinedets(self, bottom)
        self.choose("RefineDet" if self.refines else "SSD", f"{len(bottom)} bottoms")
        if self.refines and param.visualize:
            raise self.error("visualize needs the images as the fourth bottom, where RefineDet has arm_conf", "bottom[3]")
        try:
            self.files = files_asked(self)
            self.pictures = pictures_asked(self, len(bottom))
            self.stateful = self.files is not None or self.pictures is not None
        except DataError as error:
            raise self.error(str(error), "detection_output_param") from error

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(1, 1, 1, 7)
        param = self.param.detection_output_param
        self.loc_classes = 1 if param.share_location else param.num_classes
        check_predictions(self, bottom, self.loc_classes, param.num_classes)
        if self.refines:
            check_refinement(self, bottom[:3], bottom[3:], 3, self.loc_classes)
        if self.pictures is not None and (len(bottom[3].shape) != 4 or bottom[3].shape[0] != bottom[0].shape[0]):
            wanted = f"{bottom[0].shape[0]} images (N, C, H, W)"
            raise self.error(f"visualize needs {wanted}, bottom 3 has shape {bottom[3].shape}", "bottom[3]")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_output_param
        images, number = bottom[0].shape[0], bottom[2].count // 8
        refining = bottom[4].data if self.refines and len(bottom) > 4 else None
        boxes = self.boxes(bottom[0].data, bottom[2].data, refining)
        confidences = bottom[1].data.reshape(images, number, param.num_classes)
        if self.refines:
            background = np.arange(param.num_classes) == param.background_label_id
            objects = bottom[3].data.reshape(images, -1, 2)[..., 1:] >= param.objectness_score
            confidences = np.where(objects, confidences, background.astype(self.dtype))
        scores = confidences.transpose(0, 2, 1)
        rows = [self._image_rows(i, *boxes[i], scores[i]) for i in range(images)]
        found = np.concatenate([np.empty((0, 7), self.dtype), *rows])
        if not len(found):  # the original's rows for images without detections
            found = np.full((images, 7), -1, self.dtype)
            found[:, 0] = np.arange(images)
        top[0].reshape(1, 1, len(found), 7)
        top[0].data[0, 0] = found
        self._write(rows, bottom)

    def boxes(self, loc: Array, priors: Array, arm_loc: Array | None) -> list[tuple[Array, Array | None]]:
        """Return each image's boxes (L, P, 4), and their areas (L, P) if they are known.

        loc, priors and RefineDet's arm_loc (or None): the bottoms' data.
        """
        param, of_target = self.param.detection_output_param, self.param.detection_output_param.variance_encoded_in_target
        images, number, sets = len(loc), priors.size // 8, self.loc_classes
        codes = loc.reshape(images, number, sets, 4)
        if not self.refines:
            return decode_images(self, codes, priors, param.code_type, of_target)
        each = refined(read_priors(self, priors, param.code_type), arm_loc, images, param.code_type, of_target)
        # (N, L, P, 4): classes before priors.
        pairs = zip(codes.transpose(0, 2, 1, 3), each, strict=True)
        return [(decode(own, at, param.code_type, of_target), None) for own, at in pairs]

    def _write(self, rows: list[Array], bottom: Sequence[Blob]) -> None:
        """Write the requested files and pictures for each image's rows."""
        try:
            for i, own in enumerate(rows):
                if self.files is not None:
                    self.files.add(own[:, 1:])
                if self.pictures is not None:
                    self.pictures.add(bottom[3].data[i], own[:, 1:])
        except Error as error:
            raise self.error(str(error), "detection_output_param") from error

    def training_state(self) -> dict[str, Any]:
        """Return the progress of the files and pictures."""
        state: dict[str, Any] = {} if self.files is None else {"files": self.files.state()}
        return state if self.pictures is None else {**state, "pictures": self.pictures.written}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        fields = Fields(state)
        written = fields.whole("pictures", 0, MOST) if "pictures" in fields else 0
        if self.files is not None and "files" in fields:
            self.files.restore(fields.inner("files"))
        if self.pictures is not None:
            self.pictures.written = written

    def _image_rows(self, image: int, boxes: Array, areas: Array | None, scores: Array) -> Array:
        """Return one image's detections (n, 7), from boxes (L, P, 4), their areas, if known, and scores (C, P)."""
        param = self.param.detection_output_param
        suppression = param.nms_param
        return image_detections(
            boxes,
            scores,
            background=param.background_label_id,
            least=param.confidence_threshold if param.HasField("confidence_threshold") else -np.inf,
            nms_threshold=suppression.nms_threshold,
            top_k=suppression.top_k if suppression.HasField("top_k") and suppression.top_k >= 0 else None,
            keep_top_k=param.keep_top_k,
            eta=suppression.eta,
            image=image,
            areas=areas,
        )


def is_refinedets(layer: Layer, bottom: Sequence[Blob]) -> bool:
    """Return whether DetectionOutput's fourth bottom is RefineDet's arm_conf, not SSD's images.

    It is if there is a fifth bottom, objectness_score, or a shape (N, P * 2).
    """
    given = layer.param.detection_output_param.HasField("objectness_score")
    return len(bottom) > 4 or (len(bottom) > 3 and (given or len(bottom[3].shape) == 2))


def check_refinement(layer: Layer, bottom: Sequence[Blob], arm: Sequence[Blob], first: int, loc_classes: int) -> None:
    """Raise LayerError unless RefineDet's bottoms arm_conf and arm_loc, from `first` on, match loc, conf and priors."""
    images, number = bottom[0].shape[0], bottom[2].count // 8
    if loc_classes > 1:
        raise layer.error("RefineDet's bottoms need share_location", f"bottom[{first}]")
    for i, (blob, each) in enumerate(zip(arm, (2, 4)), first):
        if not blob.shape or blob.shape[0] != images or blob.count != images * number * each:
            wanted = f"{number} priors x {each} values for each of {images} images"
            raise layer.error(f"bottom {i} of shape {blob.shape} does not hold {wanted}", f"bottom[{i}]")


def _fork_of_priors(number: int, wanted: int) -> str:
    """Return a hint if another fork's PriorBox makes the wanted number of priors."""
    argument = "Net's fork="
    if wanted == 2 * number > 0:
        return f"; TextBoxes' PriorBox makes each box twice: give {ways('--fork textboxes', argument)}"
    if wanted > number and (wanted - number) % 18 == 0:
        sizes = "sizes 32, 64 and 128"
        return f"; FaceBoxes' PriorBox makes 21 boxes of the {sizes}: give {ways('--fork faceboxes', argument)}"
    return ""


def check_predictions(layer: Layer, bottom: Sequence[Blob], loc_classes: int, classes: int) -> None:
    """Raise LayerError unless the bottoms loc, conf and priors match, as those of SSD's last layers do."""
    loc, conf, priors = bottom[:3]
    if priors.count % 8 or priors.shape[:2] != (1, 2):
        raise layer.error(f"the priors must have the shape (1, 2, P * 4), got {priors.shape}", "bottom[2]")
    number = priors.count // 8
    for i, blob, each in ((0, loc, 4 * loc_classes), (1, conf, classes)):
        if not blob.shape or blob.shape[0] != loc.shape[0] or blob.count != loc.shape[0] * number * each:
            wanted = f"{number} priors x {each} values for each of {loc.shape[0] if loc.shape else 0} images"
            more, left = divmod(blob.count, (loc.shape[0] if loc.shape else 0) * each or 1)
            fork = "" if left else _fork_of_priors(number, more)
            raise layer.error(f"bottom {i} of shape {blob.shape} does not hold {wanted}{fork}", f"bottom[{i}]")
