"""R-CNN's window files: images, each with boxes, their classes and their overlaps with an object. Also MS-CNN's.

    # INDEX / PATH / CHANNELS / HEIGHT / WIDTH / NUMBER OF WINDOWS / then for each: CLASS OVERLAP X1 Y1 X2 Y2

MS-CNN's windows are CLASS IGNORED X1 Y1 X2 Y2, Cascade R-CNN's CLASS IGNORED DIFFICULT X1 Y1 X2 Y2; both then have the
NUMBER OF REGIONS of no interest, and X1 Y1 X2 Y2 of each. The list of Faster R-CNN in C++:

    # INDEX / PATH / NUMBER OF BOXES / then for each: CLASS X1 Y1 X2 Y2 DIFFICULT

Source: Caffe's window_data_layer.cpp, MS-CNN's image_gt_data_layer.cpp, Cascade R-CNN's detection_data_layer.cpp,
makefile/frcnn's frcnn_utils.hpp. Any white space separates tokens, as in C++ streams.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import DataError

from .image_list import text_lines


class Window(NamedTuple):
    """A box x1, y1, x2, y2 in pixels, both corners inclusive, of image number `image`."""

    image: int
    label: int
    overlap: float
    box: tuple[int, int, int, int]


class WindowFile(NamedTuple):
    """The images' paths, the number of their channels, and all windows."""

    images: list[str]
    channels: int
    windows: list[Window]


class LabelledImage(NamedTuple):
    """An image of MS-CNN's or Cascade R-CNN's file, and the number of its first line, from 1.

    boxes (N, 4) and regions of no interest (M, 4): x1, y1, x2, y2 in pixels, float32. classes, ignored, difficult (N,).
    """

    name: str
    height: int
    width: int
    boxes: Array
    classes: Array
    ignored: Array
    difficult: Array
    regions: Array
    line: int

    @property
    def label(self) -> str:
        """Everything but the name, as text."""
        parts = (self.boxes, self.classes, self.ignored, self.difficult, self.regions)
        return " ".join(str(part.tolist()) for part in parts)


class _Tokens:
    """The tokens of a text file, in order."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path, self.line = path, 1
        found = ((token, number) for number, line in enumerate(text_lines(path), 1) for token in line.split())
        self.tokens = list(found)[::-1]  # reversed, to be popped from the end

    def text(self, what: str) -> str:
        if not self.tokens:
            raise DataError(f"{self.path}: the file ends before {what}")
        token, self.line = self.tokens.pop()
        return token

    def whole(self, what: str) -> int:
        value = int(self.number(what, int))
        if abs(value) >= 2**31:
            raise DataError(f"{self.path}:{self.line}: expected {what}, got {value}, which is beyond 32 bits")
        return value

    def count(self, what: str) -> int:
        """Return the next token as a whole number >= 0. Raises DataError."""
        if (value := self.whole(what)) < 0:
            raise DataError(f"{self.path}:{self.line}: {what} must be >= 0, got {value}")
        return value

    def number(self, what: str, kind: Callable[[str], float] = float) -> float:
        token = self.text(what)
        try:
            return kind(token)
        except ValueError as error:
            raise DataError(f'{self.path}:{self.line}: expected {what}, got "{token}"') from error

    def next_image(self, expected: int) -> int:
        """Take "# INDEX", which begins an image, and return the index. Raises DataError."""
        self.mark("#")
        if (index := self.whole("the image's index")) != expected:
            raise DataError(f"{self.path}:{self.line}: the image has index {index}, expected {expected}")
        return index

    def mark(self, wanted: str) -> None:
        """Take the next token. Raises DataError unless it is the wanted one."""
        if (mark := self.text(f'"{wanted}"')) != wanted:
            raise DataError(f'{self.path}:{self.line}: expected "{wanted}", got "{mark}"')


def read_window_file(path: str | PathLike[str]) -> WindowFile:
    """Return the images and windows of a window file. Raises DataError, with the line."""
    tokens = _Tokens(path)
    images: list[str] = []
    windows: list[Window] = []
    channels = 0
    while tokens.tokens:
        index = tokens.next_image(len(images))
        images.append(tokens.text("the image's path"))
        # Caffe keeps the channels of the last image.
        channels, _, _ = (tokens.whole(what) for what in ("the channels", "the height", "the width"))
        windows += [_window(tokens, index) for _ in range(tokens.count("the number of windows"))]
    if not images:
        raise DataError(f"{path}: the window file is empty")
    return WindowFile(images, channels, windows)


def read_labelled_windows(path: str | PathLike[str], has_difficult: bool) -> list[LabelledImage]:
    """Return the images of MS-CNN's window file, or if has_difficult, of Cascade R-CNN's. Raises DataError, with the line."""
    tokens = _Tokens(path)
    images: list[LabelledImage] = []
    while tokens.tokens:
        tokens.next_image(len(images))
        line, name = tokens.line, tokens.text("the image's path")
        _, height, width = (tokens.whole(what) for what in ("the channels", "the height", "the width"))
        columns = ["class", "mark ignored", *["mark difficult"] * has_difficult]
        windows = [_labelled(tokens, columns) for _ in range(tokens.count("the number of windows"))]
        regions = [_labelled(tokens, []) for _ in range(tokens.count("the number of regions"))]
        rows = np.array(windows, np.float32).reshape(len(windows), len(columns) + 4)
        difficult = rows[:, 2] if has_difficult else np.zeros(len(rows), np.float32)
        corners = np.array(regions, np.float32).reshape(len(regions), 4)
        images.append(LabelledImage(name, height, width, rows[:, -4:], rows[:, 0], rows[:, 1], difficult, corners, line))
    if not images:
        raise DataError(f"{path}: the window file is empty")
    return images


def read_frcnn_list(path: str | PathLike[str], classes: int) -> list[LabelledImage]:
    """Return the images in a list of Faster R-CNN in C++, with sizes of 0. Raises DataError, with the line."""
    tokens = _Tokens(path)
    images: list[LabelledImage] = []
    while tokens.tokens:
        tokens.mark("#")
        tokens.whole("the image's index")
        name, line = tokens.text("the image's path"), tokens.line
        boxes = [_true_box(tokens, classes) for _ in range(tokens.count("the number of boxes"))]
        rows = np.array(boxes, np.float32).reshape(len(boxes), 6)
        none = np.zeros(len(rows), np.float32)
        images.append(LabelledImage(name, 0, 0, rows[:, 1:5], rows[:, 0], none, rows[:, 5], none[:0].reshape(0, 4), line))
    if not images:
        raise DataError(f"{path}: the list is empty")
    return images


def _true_box(tokens: _Tokens, classes: int) -> list[int]:
    """Return a box as class, x1, y1, x2, y2, difficult."""
    label = tokens.whole("a box's class")
    place = f"{tokens.path}:{tokens.line}"
    if not 1 <= label < classes:
        raise DataError(f"{place}: a box has class {label}; they are 1 to {classes - 1}")
    x1, y1, x2, y2 = (tokens.whole(f"a box's {side}") for side in ("x1", "y1", "x2", "y2"))
    if not tokens.tokens or tokens.tokens[-1][1] != tokens.line:
        older = "older versions of the fork leave it out, and some of them count pixels from 1"
        raise DataError(f"{place}: the box CLASS X1 Y1 X2 Y2 lacks its sixth number, DIFFICULT: {older}")
    difficult = tokens.whole("a box's mark difficult")
    if x2 < x1 or y2 < y1:
        raise DataError(f"{place}: the box {x1} {y1} {x2} {y2} has no pixels")
    return [label, x1, y1, x2, y2, difficult]


def _labelled(tokens: _Tokens, columns: list[str]) -> list[int]:
    """Return the columns of a window, then x1, y1, x2, y2."""
    row = [tokens.whole(f"a window's {column}") for column in columns]
    if row and row[0] < 1:
        raise DataError(f"{tokens.path}:{tokens.line}: a window has class {row[0]}; classes begin at 1")
    x1, y1, x2, y2 = (tokens.whole(f"a window's {side}") for side in ("x1", "y1", "x2", "y2"))
    if x2 < x1 or y2 < y1:
        raise DataError(f"{tokens.path}:{tokens.line}: the window {x1} {y1} {x2} {y2} has no pixels")
    return [*row, x1, y1, x2, y2]


def _window(tokens: _Tokens, image: int) -> Window:
    label, overlap = tokens.whole("a window's class"), tokens.number("a window's overlap")
    x1, y1, x2, y2 = (tokens.whole(f"a window's {side}") for side in ("x1", "y1", "x2", "y2"))
    if x2 < x1 or y2 < y1:
        raise DataError(f"{tokens.path}:{tokens.line}: the window {x1} {y1} {x2} {y2} has no pixels")
    return Window(image, label, overlap, (x1, y1, x2, y2))


class Cut(NamedTuple):
    """A box x1, y1, x2, y2 in pixels, both corners inclusive, of an image of this path, height and width."""

    path: str
    height: int
    width: int
    box: tuple[int, int, int, int]


class WindowGroups(NamedTuple):
    """Examples, all with the same number of boxes and the same number of labels."""

    cuts: list[list[Cut]]
    labels: list[list[float]]


def read_window_groups(path: str | PathLike[str]) -> WindowGroups:
    """Return the examples in a file of pulkitag's GenericWindowData. Raises DataError, with the line.

    # GenericDataLayer / EXAMPLES / IMAGES OF EACH / NUMBERS OF EACH / then for each: # INDEX, for each of its images
    PATH CHANNELS HEIGHT WIDTH X1 Y1 X2 Y2, and its numbers
    """
    tokens = _Tokens(path)
    for wanted in ("#", "GenericDataLayer"):
        tokens.mark(wanted)
    examples, images, numbers = (tokens.whole(f"the number of {what}") for what in ("examples", "images", "labels"))
    if examples < 1 or images < 1 or numbers < 0:
        raise DataError(f"{path}:{tokens.line}: {examples} examples of {images} images and {numbers} labels")
    cuts, labels = [], []
    for _ in range(examples):
        if (mark := tokens.text("an example")) != "#":
            raise DataError(f'{path}:{tokens.line}: expected "#", got "{mark}"')
        tokens.whole("the example's index")
        cuts.append([_cut(tokens) for _ in range(images)])
        labels.append([tokens.number("a label") for _ in range(numbers)])
    if tokens.tokens:
        raise DataError(f"{path}: has more than its {examples} examples")
    return WindowGroups(cuts, labels)


def _cut(tokens: _Tokens) -> Cut:
    path = tokens.text("an image's path")
    _, height, width = (tokens.whole(what) for what in ("the channels", "the height", "the width"))
    x1, y1, x2, y2 = (tokens.whole(f"a window's {side}") for side in ("x1", "y1", "x2", "y2"))
    if not (0 <= x1 <= x2 < width and 0 <= y1 <= y2 < height):
        raise DataError(
            f"{tokens.path}:{tokens.line}: the window {x1} {y1} {x2} {y2} is outside the image of {width} x {height}"
        )
    return Cut(path, height, width, (x1, y1, x2, y2))


class SquareBoxes(NamedTuple):
    """The images (path, height, width), the number of their channels, and the objects (image, x, y), in pixels."""

    images: list[tuple[str, int, int]]
    channels: int
    objects: list[tuple[int, int, int]]


def read_square_boxes(path: str | PathLike[str]) -> SquareBoxes:
    """Return the objects in a file of pulkitag's SquareBoxData. Raises DataError, with the line.

    # SqBoxWindowDataLayer / IMAGES / then for each: # INDEX / NUMBER OF OBJECTS / PATH / CHANNELS HEIGHT WIDTH / and for each
    of its objects X Y, and of its square box, which is not kept, the centre X Y and the side
    """
    tokens = _Tokens(path)
    for wanted in ("#", "SqBoxWindowDataLayer"):
        tokens.mark(wanted)
    count = tokens.count("the number of images")
    images: list[tuple[str, int, int]] = []
    objects: list[tuple[int, int, int]] = []
    channels = 0
    while tokens.tokens:
        index = tokens.next_image(len(images))
        boxes, name = tokens.count("the number of objects"), tokens.text("the image's path")
        channels, height, width = (tokens.whole(what) for what in ("the channels", "the height", "the width"))
        images.append((name, height, width))
        objects += [_object(tokens, index) for _ in range(boxes)]
    if len(images) != count:
        raise DataError(f"{path}: has {len(images)} images, but says {count}")
    if not objects:
        raise DataError(f"{path}: has no objects")
    return SquareBoxes(images, channels, objects)


def _object(tokens: _Tokens, image: int) -> tuple[int, int, int]:
    x, y = (tokens.whole(f"an object's {axis}") for axis in "xy")
    for what in ("x", "y", "side"):
        tokens.whole(f"a box's {what}")
    return image, x, y
