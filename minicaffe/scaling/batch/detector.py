"""A detector that can be sent to another process. It turns an image into a row with the detections or the error.

recipe = Recipe(net="test.prototxt", text=..., settings=..., ...)     a description: picklable, no arrays
detector = recipe.detector(arrays)                                    a net with copies of the arrays
row = detector.row(Picture("photo.jpg", Path("photo.jpg")))
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import detection, rng
from minicaffe.data.boxes import rows
from minicaffe.data.settings import DetectionSettings, current
from minicaffe.detection.detect import Detections, check_proposals
from minicaffe.detection.detect_cascade import cascade_ends
from minicaffe.detection.detect_ssd import SSD_MEANS, rows_end
from minicaffe.detection.region_features import ATTRIBUTES, Choice, check_features, region_features
from minicaffe.detection.text_lines import has_text_lines
from minicaffe.errors import DeviceError, Error
from minicaffe.files import granted
from minicaffe.formats.arrays import read_npy
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import Weights, put_weights

from .sources import Picture


@dataclass(frozen=True)
class Row:
    """The result of an image: pixels (H, W, 3) and found, or failure.

    best: the highest score of all boxes and classes but the background. seconds: in the net. size: the image's height and
    width.
    """

    image: str
    pixels: NDArray[np.uint8] | None = None
    found: Detections | None = None
    best: float = 0.0
    seconds: float = 0.0
    failure: Exception | None = None
    size: tuple[int, int] = (0, 0)

    @property
    def error(self) -> str:
        """The failure without the image's name; "" if none."""
        text = str(self.failure or "").removeprefix(f"{self.image}: ")
        known = self.failure is None or isinstance(self.failure, Error)
        return text if known else f"{type(self.failure).__name__}: {text}"

    def without_pixels(self) -> Row:
        """Return a row that can be sent to another process: the failure is an Error with the same text."""
        return replace(self, pixels=None, failure=self.failure and Error(self.error))


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a detector, except its weights.

    regions: for the features of regions instead of detections. rgb: the net takes red, green, blue; settings and means have
    that order.
    """

    net: str
    text: str
    settings: DetectionSettings = field(default_factory=current)
    threshold: float = 0.5
    max_detections: int = 100
    proposals: str | None = None
    means: tuple[float, ...] = SSD_MEANS
    scale_factor: float = 1.0
    names: tuple[str, ...] | None = None
    seed: int = 0
    level: int = 0
    stages: tuple[str, ...] = ()
    strict: bool | None = None
    fork: str = ""
    regions: Choice | None = None
    rgb: bool = False

    def detector(self, weights: Weights) -> Detector:
        """Return a new net with these weights. The prototxt's warnings were shown when the recipe was made."""
        rng.set_random_seed(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file, stages = parse_net(self.text, self.net), list(self.stages)
            options: dict[str, Any] = {"settings": self.settings, "strict": self.strict, "fork": self.fork}
            net = Net(file, TEST, self.level, stages, keep="outputs", **options)
        put_weights(net, weights)
        return Detector(net, self)


class Detector:
    """A net that detects objects in images. Raises Error if it is not a detector of a known convention."""

    def __init__(self, net: Net, recipe: Recipe) -> None:
        self.net, self.recipe, is_ssd = net, recipe, rows_end(net) is not None
        self.find = detection.Detector(
            net,
            classes=recipe.names,
            threshold=recipe.threshold,
            max_detections=recipe.max_detections,
            means=recipe.means if is_ssd else None,
            scale_factor=recipe.scale_factor if is_ssd else None,
        )
        if not self.find.is_ssd:
            check_proposals(net, recipe.proposals is not None)
        if recipe.regions:
            check_features(net, recipe.regions)

    @property
    def region_columns(self) -> tuple[str, ...]:
        """The attributes that regions have beside detections."""
        if not self.recipe.regions:
            return ()
        attributes = ("attributes", "attribute_scores") if ATTRIBUTES in self.net.blobs else ()
        names = ("attribute_names",) if self.recipe.regions.attributes else ()
        return ("features", "class_scores", *attributes, *names)

    def row(self, picture: Picture) -> Row:
        """Return the detections in an image. The row holds its error, if any; only DeviceError is raised."""
        try:
            pixels = picture.pixels()
            start = time.perf_counter()
            found = self._found(pixels, read_proposals(self.recipe.proposals, Path(picture.name)))
            seconds, size = time.perf_counter() - start, (pixels.shape[0], pixels.shape[1])
            best = best_score(self.net) if found.best is None else found.best
            return Row(picture.name, pixels, found, best, seconds, size=size)
        except DeviceError:
            raise
        except Exception as error:  # better lose an image than a batch
            return Row(picture.name, failure=error)

    def _found(self, pixels: NDArray[np.uint8], proposals: NDArray[Any] | None) -> Detections:
        if self.recipe.rgb:
            pixels = np.ascontiguousarray(pixels[..., ::-1])
        if self.recipe.regions:
            return region_features(self.net, pixels, self.recipe.regions, proposals=proposals)
        return self.find(pixels, proposals=proposals)


def best_score(net: Net) -> float:
    """Return the highest score of the net's last pass, without the background; 0 if there is none."""
    if end := rows_end(net):
        return float(end.rows(net)[:, 2].max(initial=0))
    if has_text_lines(net):
        return float(net.blobs["scores"].read_data().max(initial=0))
    _, name = cascade_ends(net) or ("", "cls_prob")
    return float(rows(net.blobs[name])[:, 1:].max(initial=0))


def read_proposals(source: str | None, image: Path) -> NDArray[Any] | None:
    """Return the boxes (R, 4) for an image, from a .npy file, or from the file with the image's name in a folder."""
    if source is None:
        return None
    path = Path(source) / f"{image.stem}.npy" if Path(source).is_dir() else Path(source)
    try:
        boxes = read_npy(granted(path, namer="a link"))
    except OSError as error:
        raise Error(f"{path}: cannot read the proposals of {image}: {error.strerror}") from error
    if boxes.dtype.kind not in "iuf" or boxes.ndim != 2 or boxes.shape[1] != 4:
        raise Error(f"{path}: proposals must be x1, y1, x2, y2 of shape (R, 4), got {boxes.dtype} of shape {boxes.shape}")
    return boxes
