"""The recipe of a detector, which can be sent to another process, and its pipeline from an image to a row.

recipe = Recipe(net="test.prototxt", text=..., settings=..., ...)     a description: picklable, no arrays
pipeline = recipe.pipeline(arrays)                                    a detector with copies of the arrays
row = pipeline.row(Picture("photo.jpg", Path("photo.jpg")))           the detections, or the error
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.data.settings import DetectionSettings, current
from minicaffe.detection.detect import Detections
from minicaffe.detection.detector import Detector
from minicaffe.detection.families import family_of
from minicaffe.detection.family import FindOptions
from minicaffe.detection.inputs import read_proposals
from minicaffe.detection.region_features import ATTRIBUTES, Choice, check_features, region_features
from minicaffe.errors import DeviceError, Error
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
        """Return the row in a form that another process can receive: the failure is an Error with the same text."""
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
    threshold: float | None = None
    max_detections: int = 100
    proposals: str | None = None
    means: tuple[float, ...] | None = None
    scale_factor: float | None = None
    names: tuple[str, ...] | None = None
    seed: int = 0
    level: int = 0
    stages: tuple[str, ...] = ()
    strict: bool | None = None
    fork: str = ""
    regions: Choice | None = None
    rgb: bool = False

    def pipeline(self, weights: Weights) -> Pipeline:
        """Return the pipeline of a new net with these weights, without the prototxt's warnings, which were shown before."""
        rng.set_random_seed(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file, stages = parse_net(self.text, self.net), list(self.stages)
            options: dict[str, Any] = {"settings": self.settings, "strict": self.strict, "fork": self.fork}
            net = Net(file, TEST, self.level, stages, keep="outputs", **options)
        put_weights(net, weights)
        return Pipeline(net, self)


class Pipeline:
    """A detector with its recipe, which turns an image into its row. Raises Error for a net that is no detector."""

    def __init__(self, net: Net, recipe: Recipe) -> None:
        self.net, self.recipe = net, recipe
        prepared: dict[str, Any] = (
            {"means": recipe.means, "scale_factor": recipe.scale_factor} if family_of(net).has_fixed_size else {}
        )
        most, names = recipe.max_detections, recipe.names
        self.detector = Detector(net, classes=names, threshold=recipe.threshold, max_detections=most, **prepared)
        self.detector.family.check_proposals(net, recipe.proposals is not None)
        if recipe.regions:
            check_features(net, recipe.regions)

    def preparation(self) -> list[str]:
        """Return sentences on how images are prepared."""
        options = FindOptions(settings=self.recipe.settings, means=self.recipe.means, scale_factor=self.recipe.scale_factor)
        return self.detector.family.preparation(self.net, options)

    @property
    def region_columns(self) -> tuple[str, ...]:
        """The columns that regions have in addition to those of detections."""
        if not self.recipe.regions:
            return ()
        attributes = ("attributes", "attribute_scores") if ATTRIBUTES in self.net.blobs else ()
        names = ("attribute_names",) if self.recipe.regions.attributes else ()
        return ("features", "class_scores", *attributes, *names)

    def row(self, picture: Picture) -> Row:
        """Return the detections in an image, or its error. Raises only DeviceError."""
        try:
            pixels = picture.pixels()
            start, given = time.perf_counter(), np.ascontiguousarray(pixels[..., ::-1]) if self.recipe.rgb else pixels
            proposals = read_proposals(self.recipe.proposals, Path(picture.name))
            if self.recipe.regions:
                found: Detections = region_features(self.net, given, self.recipe.regions, proposals=proposals)
            else:
                found = self.detector(given, proposals=proposals)
            seconds, size = time.perf_counter() - start, (pixels.shape[0], pixels.shape[1])
            return Row(picture.name, pixels, found, found.best or 0.0, seconds, size=size)
        except DeviceError:
            raise
        except Exception as error:  # one faulty image must not lose its batch
            return Row(picture.name, failure=error)
