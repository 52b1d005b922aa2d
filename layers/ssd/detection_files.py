"""The files of DetectionOutput: results for evaluation servers, and pictures of the detections.

    VOC:    PREFIX + class + ".txt" for each class: image score xmin ymin xmax ymax
    COCO:   PREFIX + ".json": [{"image_id": ..., "category_id": class, "bbox": [x, y, width, height], "score": ...}, ...]
    ILSVRC: PREFIX + ".txt": image label score xmin ymin xmax ymax

The folder is created with the first file; an existing file is replaced only if a run wrote it: .minicaffe_wrote in the folder
gets a line for each file before the file is written, ["found.json", SHA-256 of what is written].

A label map is a prototxt file of LabelMap: a name, a label and a name to show for each class. For pictures, the net's input
images become bytes again: data / scale + mean, then resize_param, as in transform_param.
Source: the SSD fork's detection_output_layer.cpp (save_output_param; visualize, which shows pictures in a window and writes a
video), detection_evaluate_layer.cpp (name_size_file) and bbox_util.cpp (OutputBBox).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.data.augmentation import as_bytes
from minicaffe.data.data_transformer import Window, mean_part, read_mean
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.resizing import check_resize, resized_by
from minicaffe.data.state_fields import MOST, Fields, number, wrong
from minicaffe.errors import DataError, Error, on_one_line, unread
from minicaffe.files import granted, in_place, opened, read_bytes, read_text, replacing, unlinked
from minicaffe.formats.prototxt import UNPRINTABLE, parse_message
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

Resize = caffe_pb2.ResizeParameter


LARGEST = 2**31 - 1
"""Most pixels of a side: the greatest int in Caffe."""


class Sized(NamedTuple):
    """An image's name, and its height and width in pixels."""

    name: str
    height: int
    width: int


def read_name_sizes(file: str) -> list[Sized]:
    """Return the images listed in a name_size_file, "name height width" on each line, from 1 to LARGEST.

    Raises DataError.
    """
    try:
        words = [line.split() for line in read_text(granted(file), "lists").split("\n") if line.strip()]
        sizes = [Sized(name, int(height), int(width)) for name, height, width in words]
    except OSError as error:
        raise DataError(unread(str(file), "cannot be read", error)) from error
    except ValueError as error:
        raise DataError(f'{file}: its lines must be "name height width"') from error
    if not sizes:
        raise DataError(f"{file}: no sizes in it")
    for image in sizes:
        if not (1 <= image.height <= LARGEST and 1 <= image.width <= LARGEST):
            raise DataError(f"{file}: {image.name}: no image has the height {image.height} and the width {image.width}")
    return sizes


def check_frame(resize: caffe_pb2.ResizeParameter | None) -> None:
    """Raise DataError for a resize_param without a size."""
    if resize is not None and not (resize.height and resize.width):
        raise DataError(f"resize_param needs a height and a width > 0, got {resize.height} and {resize.width}")


def boxes_in_pixels(boxes: Array, image: Sized, resize: caffe_pb2.ResizeParameter | None) -> Array:
    """Return boxes (n, 4), relative to the net's input, in the image's pixels, cut at its edges.

    resize: how the image became the input. With FIT_LARGE_SIZE_AND_PAD boxes are relative to the padded frame. With
    FIT_SMALL_SIZE, height_scale and width_scale they are relative to these.
    """
    size = np.array([image.width, image.height] * 2, boxes.dtype)
    if resize is not None and resize.resize_mode == Resize.FIT_SMALL_SIZE and resize.height_scale and resize.width_scale:
        scale = np.array([resize.width_scale, resize.height_scale] * 2, boxes.dtype)
        scaled: Array = np.clip(boxes * scale, 0, size)
        return scaled
    if resize is not None and resize.resize_mode == Resize.FIT_LARGE_SIZE_AND_PAD:
        boxes = (boxes - margins(image, resize)) / (1 - 2 * margins(image, resize))
    pixels: Array = np.clip(boxes, 0, 1) * size
    return pixels.astype(boxes.dtype)


def margins(image: Sized, resize: caffe_pb2.ResizeParameter) -> Array:
    """Return the padding's share of the frame: left, above, left, above (4,)."""
    wide, wanted = image.width / image.height, resize.width / resize.height
    if wide > wanted:
        return np.array([0, (1 - wanted / wide) / 2] * 2)
    return np.array([(1 - wide / wanted) / 2, 0] * 2)


MOST_CLASSES = 1_000_000
"""Most classes of detections, because there is a list of them."""


def read_label_map(file: str) -> dict[int, caffe_pb2.LabelMapItem]:
    """Return the items of a label map (LabelMap as prototxt) by label. Raises DataError."""
    try:
        items = parse_message(read_text(granted(file)), caffe_pb2.LabelMap(), file).item
    except OSError as error:
        raise DataError(unread(str(file), "cannot be read", error)) from error
    except (Error, UnicodeDecodeError) as error:
        raise DataError(str(error)) from error
    labels = {item.label: item for item in items}
    if len(labels) < len(items) or len({item.name for item in items}) < len(items):
        raise DataError(f"{file}: a name or a label stands in it twice")
    for item in items:
        if UNPRINTABLE.search(item.name):
            raise DataError(f'{file}: the name "{on_one_line(item.name)}" holds a control character')
    return labels


def labels_by_name(file: str, names: Sequence[str]) -> list[int]:
    """Return the label that a label map gives to each of the names, the first of which is the background, with label 0.

    An item's name counts before its display_name, which is the readable one in COCO's label map. Raises DataError.
    """
    items = read_label_map(file).values()
    labels = {item.display_name: item.label for item in items} | {item.name: item.label for item in items}
    if unknown := [name for name in names[1:] if name not in labels]:
        known = ", ".join([item.display_name or item.name for item in items if item.label][:MOST_NAMED])
        raise DataError(f'{file}: no item has the name "{on_one_line(unknown[0])}"; it has {known or "no classes"}')
    return [0, *(labels[name] for name in names[1:])]


MOST_NAMED = 20
"""Most names that a message lists."""
RECORD = ".minicaffe_wrote"


class OwnFiles:
    """The files of a folder, which is created with the first file. Raises DataError if it cannot be created."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: set[tuple[str, str]] | None = None
        granted(folder / RECORD)
        nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
        if not nearest.is_dir():
            raise DataError(f"{folder}: {nearest} is no folder, so results cannot be written into it")

    def check(self, name: str) -> None:
        """Raise DataError for an invalid file name, or for an existing file that no run wrote."""
        path = unlinked(granted(self.folder / name), DataError)
        if Path(name).name != name or "\\" in name:
            raise DataError(f'"{name}" leads out of the folder {self.folder}')
        if not os.path.lexists(path):
            return
        if not path.is_file() or (name, _digest(read_bytes(path, "lists"))) not in self._record():
            raise DataError(f"{path} is there, and no run wrote it: not overwritten; remove it, or give another name")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace one of ours. Raises Error."""
        self.check(name)
        entry = (name, _digest(content))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Before the file is written: after a crash in between, no file may be left that later runs cannot replace.
            if entry not in self._record():
                self._append(entry)
        except OSError as error:
            raise DataError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from error
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(content)

    def _record(self) -> set[tuple[str, str]]:
        """Return the names and digests of the files that runs wrote, read once. Incomplete lines are ignored."""
        if self._written is None:
            self._written = set()
            with suppress(OSError), opened(self.folder / RECORD, follow=False) as lines:
                # a sparse file may have a line without an end
                for line in lines if os.fstat(lines.fileno()).st_size <= limits.lists else ():
                    with suppress(ValueError, TypeError):
                        name, digest = json.loads(line)
                        self._written.add((name, digest))
        return self._written

    def _append(self, entry: tuple[str, str]) -> None:
        handle = in_place(self.folder / RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, json.dumps(entry).encode() + b"\n")  # in one write, so that lines of several processes stay whole
        finally:
            os.close(handle)
        self._record().add(entry)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files_asked(layer: Layer) -> DetectionFiles | None:
    """Return the writer of the files that a DetectionOutput layer's save_output_param requests, or None. Raises DataError."""
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
    """A detection: image name, class, score; left, top, width and height in pixels, to a hundredth."""

    image: str
    label: int
    score: float
    box: list[float]


class DetectionFiles:
    """A collector of each image's detections. It writes the files after the last image.

    The images are name_size_file's, or its first num_test_image, again and again. Raises DataError for a bad label map, list,
    format or directory, and for an existing file that no run wrote.
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
        """Add the next image's detections (n, 6): class, score, corners relative to the net's input. Raises Error."""
        image = self.images[self.next]
        corners = boxes_in_pixels(rows[:, 2:].astype(np.float32), image, self.resize)
        boxes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        rounded = np.floor(boxes.astype(float) * 100 + 0.5) / 100
        for (label, score), box in zip(rows[:, :2], rounded, strict=True):
            # str gives the shortest decimal number of this float32.
            self.found.append(Found(image.name, int(label), float(str(np.float32(score))), box.tolist()))
        self.next += 1
        if self.next == self.count:
            for name, text in self._texts().items():
                self.own.write(name, text.encode("utf-8"))
            self.found, self.next = [], 0

    def state(self) -> dict[str, Any]:
        return {"next": self.next, "found": [list(one) for one in self.found]}

    def restore(self, fields: Fields) -> None:
        """Continue from a state(). Raises ValueError for a state that does not fit these images."""
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
        """Return the files' contents by name."""
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
"""The id of an image or a category, of up to 18 digits, which fit 64 bits."""


def line(found: Found, label: str = "") -> str:
    """Return a detection as a line. Pixels are truncated; the far corner is the truncated near one plus the truncated size."""
    x, y, width, height = map(int, found.box)
    return f"{found.image} {label}{found.score:g} {x} {y} {x + width} {y + height}\n"


def number_or_text(name: str) -> int | str:
    """Return a COCO id, which is a number: "42" is 42, but "0042" and "person" stay text."""
    return int(name) if COCO_ID.fullmatch(name) else name


KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP"}
LEAST = 0.6
"""The least score that is drawn if visualize_threshold is not given."""


def pictures_asked(layer: Layer, bottoms: int) -> DetectionPictures | None:
    """Return the writer of the pictures that a DetectionOutput layer's visualize requests, or None. Raises DataError."""
    param = layer.param.detection_output_param
    if not param.visualize:
        return None
    if not param.save_file:
        message = "visualize shows nothing: minicaffe opens no window; with a save_file it writes pictures"
        layer.warn(message, "detection_output_param.visualize")
        return None
    if bottoms < 4:
        raise DataError("visualize needs the images as a fourth bottom")
    file = param.save_output_param.label_map_file
    items = read_label_map(file) if file else {}
    names = {label: item.display_name or item.name for label, item in items.items()}
    listed = [names.get(k, f"class {k}") for k in range(param.num_classes)]
    return DetectionPictures(param, layer.param.transform_param, listed)


class DetectionPictures:
    """A writer of a picture for each image.

    save_file "found.png" gives found_000001.png, found_000002.png, ...; so does a name without a picture's suffix, such as
    "found.avi". An existing file is replaced only if a run wrote it. Raises DataError for images and means that do not fit, and
    for files that cannot be written.
    """

    def __init__(
        self, param: caffe_pb2.DetectionOutputParameter, transform: caffe_pb2.TransformationParameter, names: list[str]
    ) -> None:
        self.least = param.visualize_threshold if param.HasField("visualize_threshold") else LEAST
        self.file, self.names, self.transform = Path(granted(param.save_file)), names, transform
        self.own = OwnFiles(self.file.parent)
        self.mean = read_mean(transform, np.float32)
        self.written = 0
        if not transform.scale:
            raise DataError("transform_param.scale is 0: the images cannot be made bytes again")
        if transform.HasField("resize_param"):
            check_resize(transform.resize_param)

    def add(self, image: Array, rows: Array) -> None:
        """Write the picture of an image (C, H, W) with its detections (n, 6): class, score, corners. Raises Error."""
        from minicaffe.data.drawings import draw_boxes

        pixels = self.pixels(image)
        likely = rows[rows[:, 1] >= self.least]
        best = likely[np.argsort(-likely[:, 1], kind="stable")]
        size = np.array([pixels.shape[1], pixels.shape[0]] * 2)
        boxes = np.clip(best[:, 2:] * size, 0, size - 1).astype(np.float32)
        self.written += 1
        suffix = self.file.suffix if self.file.suffix.lower() in KINDS else ".png"
        content = io.BytesIO()
        scores, classes = best[:, 1].astype(np.float32), best[:, 0].astype(np.int64)
        draw_boxes(pixels, boxes, scores, classes, self.names).save(content, KINDS[suffix.lower()])
        self.own.write(f"{self.file.stem}_{self.written:06d}{suffix}", content.getvalue())

    def pixels(self, image: Array) -> Pixels:
        """Return the net's input image (C, H, W) as bytes (H, W, 3) in BGR order."""
        channels, height, width = image.shape
        if channels not in (1, 3):
            raise DataError(f"visualize needs images of 1 or 3 channels, got {channels}")
        values = image / self.transform.scale
        if self.mean is not None:
            whole = Window(slice(None), slice(None), height, width)
            values = values + mean_part(self.mean, image.shape, whole, self.transform.mean_file)
        pixels = as_bytes(values.transpose(1, 2, 0))
        if self.transform.HasField("resize_param"):
            pixels = resized_by(pixels, self.transform.resize_param, np.random.default_rng(0))[0]
        return np.repeat(pixels, 3, axis=2) if channels == 1 else pixels
