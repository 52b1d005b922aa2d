"""The options of a detector and its images for detect, evaluate and features, and the pipeline that they describe."""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click

from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.class_names import first_names, read_names
from minicaffe.detection.data_inputs import data_layers, image_size
from minicaffe.detection.families import FAMILY_NAMES, family_of
from minicaffe.detection.family import SSD_MEANS
from minicaffe.detection.region_features import Choice
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_net, read_text, to_text
from minicaffe.net import Net
from minicaffe.scaling.batch.recipe import Pipeline, Recipe

from .common import refuse
from .groups import DeviceOptions, StateOptions, classes_option, seed_option
from .image_options import ImageOptions, of_data
from .options import FiniteRange, option
from .pictures import SourceOptions


def anchors_of(text: str) -> tuple[float, ...]:
    """--anchors' widths and heights. Raises Error."""
    with suppress(ValueError):
        numbers = tuple(map(float, text.split(",")))
        if len(numbers) % 2 == 0 and all(0 < number < math.inf for number in numbers):
            return numbers
    raise Error(f"--anchors {text}: give pairs of a width and a height > 0, with commas between the numbers")


@dataclass(frozen=True, kw_only=True)
class DetectorOptions(SourceOptions, ImageOptions, DeviceOptions, StateOptions):
    """A detector and its images. threshold, max_detections: constants unless a command has the options. engine: None unless it
    has BatchOptions."""

    classes: str | None = classes_option()
    scale: int | None = option("--scale", "Pixels of the short side.  [default: 600]", type=click.IntRange(1))
    max_size: int | None = option("--max-size", "Most pixels of the long side.  [default: 1000]", type=click.IntRange(1))
    nms: float | None = option("--nms", "Overlap that drops the lower score.  [default: 0.3]", type=FiniteRange(0, 1))
    proposals: str | None = option(
        "--proposals", "Boxes (R, 4) for nets that take rois; in DIR: IMAGE-NAME.npy.", metavar="FILE.npy|DIR"
    )
    anchors: tuple[float, ...] | None = option(
        "--anchors",
        "Of a YOLO v2 without its last layer, in cells, or a SqueezeDet, in pixels.  [default: the published net's]",
        metavar="W,H,W,H,...",
        type=anchors_of,
    )
    seed: int = seed_option()
    threshold: float = 0.5
    max_detections: int = 100
    engine: str | None = None

    @cached_property
    def settings(self) -> DetectionSettings:
        settings = super().settings
        means = settings.pixel_means[::-1] if self.rgb else settings.pixel_means  # the detector gets the image turned round
        return dataclasses.replace(settings, test=dataclasses.replace(settings.test, **self._given_test), pixel_means=means)

    @property
    def _given_test(self) -> dict[str, Any]:
        """The TEST settings that options give."""
        scales = self.scale and (self.scale,)
        given = {"scales": scales, "max_size": self.max_size, "nms": self.nms, "anchors": self.anchors}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def inputs(self) -> list[str | None]:
        """The files that the command reads besides the images."""
        return [self.net, *self.weights, self.classes, self.cfg, self.mean_file, self.proposals]

    def pipeline(self, regions: Choice | None = None) -> Pipeline:
        """Return the pipeline on its device. Raises Error for an option that does not apply to a net of this kind."""
        if self.engine != "ray":
            self.use_device()
        file = read_net(self.net, warn=False)
        layers = data_layers(file, self.state_of(file))
        if layers and image_size(layers[0]):
            file = self.open_net(file, images=True)
            options, text = of_data(self, layers[0]), to_text(file.param)
        else:
            options, text = self, read_text(self.net)
        net = self.load(file, self.weights, keep="outputs")
        pipeline = Pipeline(net, options._recipe(net, text, regions))
        names, (classes, holder, _) = pipeline.recipe.names, pipeline.detector.family.classes(net)
        if names and len(names) != classes:
            raise Error(f"{self.classes}: {len(names)} classes with the background, but {holder} has {classes}")
        return pipeline

    def _recipe(self, net: Net, text: str, regions: Choice | None) -> Recipe:
        """Return the recipe of a net, whose prototxt is text. Raises Error for an option that does not apply to it."""
        self._check_family(net)
        names = read_names(self.classes) if self.classes else None
        if names and regions:
            names = first_names(names)
        family, settings = family_of(net), self.settings
        if family.test_defaults and not self.cfg:
            test = dataclasses.replace(settings.test, **{**family.test_defaults, **self._given_test})
            settings = net.settings = dataclasses.replace(settings, test=test)
        return Recipe(
            net=self.net,
            text=text,
            settings=settings,
            threshold=self.threshold,
            max_detections=self.max_detections,
            proposals=self.proposals,
            means=tuple(self.means or SSD_MEANS)[:: -1 if self.rgb else 1],
            rgb=self.rgb,
            scale_factor=self.factor,
            names=tuple(names) if names else None,
            seed=self.seed,
            level=self.level,
            stages=self.stages,
            strict=not self.skip_unknown,
            fork=self.fork or "",
            regions=regions,
        )

    def _check_family(self, net: Net) -> None:
        """Raise Error for an option that does not apply to the net's family."""
        family = family_of(net)
        used = family.used_settings(net)
        if family.has_fixed_size:
            given = {"--scale": self.scale, "--max-size": self.max_size, "--nms": self.nms, "--proposals": self.proposals}
            no_cfg = {} if used else {"--cfg": self.cfg}
            refuse(f"here: {family.fixed_by(net)} fixes its size and suppression", no_cfg | given)
            if self.cfg:
                family.check_settings(net, read_settings(self.cfg), f"--cfg {self.cfg}")
        else:
            refuse(f"here: only {FAMILY_NAMES} take it", {"--scale-factor": self.scale_factor})
        if "TEST.ANCHORS" not in (used or ()):
            refuse("here: only a SqueezeDet, and a YOLO v2 without its last layer, take it", {"--anchors": self.anchors})


def preparation_text(pipeline: Pipeline, cfg: str | None) -> str:
    """Return how images are prepared, and what changes that, in one line."""
    if pipeline.detector.family.has_fixed_size:
        way = "--mean and --scale-factor change them"
    else:
        way = f"from {cfg}" if cfg else "--cfg FILE.yml changes them: give the settings that the net was trained with"
    return f"Taken: {', '.join(pipeline.preparation())} ({way})"
