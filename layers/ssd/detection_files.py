"""The result files that evaluation servers take, of detections image by image.

    VOC:    PREFIX + class + ".txt" for each class: image score xmin ymin xmax ymax
    COCO:   PREFIX + ".json": [{"image_id": ..., "category_id": class, "bbox": [x, y, width, height], "score": ...}, ...]
    ILSVRC: PREFIX + ".txt": image label score xmin ymin xmax ymax

The folder is created with the first file; an existing file is replaced only if a run wrote it (own_files.py).
Source: the SSD fork's detection_output_layer.cpp (save_output_param).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.state_fields import MOST, Fields, number, wrong
from minicaffe.errors import DataError
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .image_sizes import boxes_in_pixels, check_frame, read_name_sizes
from .label_map import read_label_map
from .own_files import OwnFiles


def files_asked(layer: Layer) -> DetectionFiles | None:
    """What writes the files that a DetectionOutput layer's save_output_param asks for. Raises DataError."""
    param = layer.param.detection_output_param
    saving = param.save_output_param
    if not saving.output_directory:
        return None
    if not (saving.label_map_file and saving.name_size_file):
        message = "save_output_param writes nothing without a label_map_file and a name_size_file"
        layer.warn(message, "detection_output_param.save_output_param")
        return None
    return DetectionFiles(saving, [k for k in range(param.num_classes) if k != param.background_label_id])


class Found(NamedTuple):
    """A detection: the image's name, the class, the score; left, top, width and height in pixels, to a hundredth."""

    image: str
    label: int
    score: float
    box: list[float]


class DetectionFiles:
    """Collects the detections image by image, and writes the files after the last one.

    The images are those of name_size_file, or its first num_test_image; then the first comes again.
    Raises DataError for a bad label map, list, format or directory, and for an existing file that no run wrote.
    """

    def __init__(self, param: caffe_pb2.SaveOutputParameter, labels: list[int]) -> None:
        self.param, self.labels = param, labels
        self.resize = param.resize_param if param.HasField("resize_param") else None
        self.images = read_name_sizes(param.name_size_file)
        self.count = param.num_test_image if param.HasField("num_test_image") else len(self.images)
        self.names = {label: item.name for label, item in read_label_map(param.label_map_file).items()}
        self.own = OwnFiles(Path(param.output_directory))
        self.found: list[Found] = []
        self.next = 0
        self._check()

    def _check(self) -> None:
        check_frame(self.resize)
        if not 0 < self.count <= len(self.images):
            raise DataError(f"num_test_image must be 1 to {len(self.images)}, the images of name_size_file, got {self.count}")
        if self.param.output_format not in FORMATS:
            raise DataError(f'output_format must be {", ".join(FORMATS)}, got "{self.param.output_format}"')
        for label in self.labels:
            name = self.names.get(label)
            if name is None:
                raise DataError(f"{self.param.label_map_file}: no item has the label {label}")
            if "/" in name or "\\" in name:
                raise DataError(f'{self.param.label_map_file}: "{name}" cannot be part of a file name')
        for file in self._texts():
            self.own.check(file)

    def add(self, rows: Array) -> None:
        """Take the next image's detections (n, 6): class, score, corners relative to the net's input. Raises Error."""
        image = self.images[self.next]
        corners = boxes_in_pixels(rows[:, 2:].astype(np.float32), image, self.resize)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        rounded = np.floor(boxes.astype(float) * 100 + 0.5) / 100
        for (label, score), box in zip(rows[:, :2], rounded, strict=True):
            # through str: the shortest decimal number that is this float32
            self.found.append(Found(image.name, int(label), float(str(np.float32(score))), box.tolist()))
        self.next += 1
        if self.next == self.count:
            for name, text in self._texts().items():
                self.own.write(name, text.encode("utf-8"))
            self.found, self.next = [], 0

    def state(self) -> dict[str, Any]:
        return {"next": self.next, "found": [list(one) for one in self.found]}

    def restore(self, fields: Fields) -> None:
        """Go on from a state(). Raises ValueError for a state that does not fit these images."""
        following = fields.whole("next", 0, self.count - 1)
        names = {image.name for image in self.images}
        found = [self._found(one, f"{fields.path('found')}[{i}]", names) for i, one in enumerate(fields.items("found"))]
        self.next, self.found = following, found

    def _found(self, state: Any, name: str, images: set[str]) -> Found:
        if not isinstance(state, list) or len(state) != len(Found._fields):
            raise wrong(name, f"a list of {', '.join(Found._fields)}", state)
        fields = Fields(dict(zip(Found._fields, state, strict=True)), name)
        image, label, box = fields.text("image"), fields.whole("label", 0, MOST), fields.numbers("box")
        if image not in images or label not in self.labels or len(box) != 4:
            raise wrong(name, "a box of one of the images and classes", state)
        return Found(image, label, number(fields.get("score"), fields.path("score")), box)

    def _texts(self) -> dict[str, str]:
        """The files' contents by name."""
        prefix, kind = self.param.output_name_prefix, self.param.output_format
        if kind == "VOC":
            lines = {label: [line(one) for one in self.found if one.label == label] for label in self.labels}
            return {f"{prefix}{self.names[label]}.txt": "".join(own) for label, own in lines.items()}
        if kind == "ILSVRC":
            return {f"{prefix}.txt": "".join(line(one, f"{one.label} ") for one in self.found)}
        objects = [json.dumps(self._coco(one)) for one in self.found]
        return {f"{prefix}.json": "[\n" + ",\n".join(objects) + "\n]\n"}

    def _coco(self, found: Found) -> dict[str, Any]:
        ids = {"image_id": number_or_text(found.image), "category_id": number_or_text(self.names[found.label])}
        return {**ids, "bbox": found.box, "score": found.score}


FORMATS = ("VOC", "COCO", "ILSVRC")
COCO_ID = re.compile("0|[1-9][0-9]{0,17}")
"""Of an image or a category: what 64 bits hold."""


def line(found: Found, label: str = "") -> str:
    """A detection as a line; pixels are cut to whole ones, the far corner from the near one and the size."""
    x, y, width, height = map(int, found.box)
    return f"{found.image} {label}{found.score:g} {x} {y} {x + width} {y + height}\n"


def number_or_text(name: str) -> int | str:
    """COCO's ids are numbers: "42" is 42, but "0042" and "person" stay text."""
    return int(name) if COCO_ID.fullmatch(name) else name
