"""The options of a detector for detect, evaluate and features; their pipeline; --out, whose Parquet files it or Ray writes."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import click

from minicaffe import threads
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.class_names import first_names, read_names
from minicaffe.detection.data_inputs import data_layers, image_size
from minicaffe.detection.families import FAMILY_NAMES, family_of
from minicaffe.detection.mtcnn import following, joined, joined_weights, stage_of
from minicaffe.detection.region_features import Choice
from minicaffe.errors import Error
from minicaffe.files import is_uri
from minicaffe.formats.prototxt import read_net, read_text, to_text
from minicaffe.formats.weights import WeightsFile
from minicaffe.net import Net
from minicaffe.parameters import Weights, weights_of
from minicaffe.scaling.batch.folder import Folder, locked, part_name
from minicaffe.scaling.batch.places import check_opens, require_pyarrow
from minicaffe.scaling.batch.recipe import Pipeline, Recipe
from minicaffe.scaling.batch.rules import Rules
from minicaffe.scaling.batch.run import PART_SIZE, Done, Run, begin, detected, run_local
from minicaffe.scaling.batch.sources import Sources
from minicaffe.scaling.in_flight import in_flight
from minicaffe.scaling.stops import exit_status, sigterm_stops

from .common import check_folder, identity, refuse
from .groups import DeviceOptions, StateOptions, classes_option, seed_option
from .image_options import (
    FAMILY_FACTORS,
    FAMILY_MEANS,
    AnchorFile,
    ImageOptions,
    anchors_in,
    anchors_option,
    inform_preprocessing,
    mean_option,
    of_data,
    preprocessing_way,
    scale_factor_option,
)
from .options import FiniteRange, option
from .pictures import SourceOptions, concurrent_images
from .terminal import echo, inform

if TYPE_CHECKING:
    from rich.progress import Progress


def anchors_of(text: str) -> AnchorFile | tuple[float, ...]:
    """Return the widths and heights of --anchors, or the file that it names. Raises Error."""
    if text.endswith(".py"):
        return anchors_in(text)
    with suppress(ValueError):
        numbers = tuple(map(float, text.split(",")))
        if len(numbers) % 2 == 0 and all(0 < number < math.inf for number in numbers):
            return numbers
    raise Error(f"--anchors {text}: give pairs of a width and a height > 0, with commas between the numbers, or a FILE.py")


@dataclass(frozen=True, kw_only=True)
class DetectorOptions(SourceOptions, ImageOptions, DeviceOptions, StateOptions):
    """The options of a detector and its images.

    threshold, max_detections: constants unless a command has the options. engine: None unless it has BatchOptions.
    """

    heading: ClassVar[str] = "The detector"
    classes: str | None = classes_option()
    scale: int | None = option("--scale", "Scale images to this short side, in pixels.  [default: 600]", type=click.IntRange(1))
    max_size: int | None = option("--max-size", "Maximum of the long side, in pixels.  [default: 1000]", type=click.IntRange(1))
    nms: float | None = option(
        "--nms", "Overlap above which the box with the lower score is dropped.  [default: 0.3]", type=FiniteRange(0, 1)
    )
    proposals: str | None = option(
        "--proposals", "Boxes (R, 4) for nets that take rois; in DIR: IMAGE-NAME.npy.", metavar="FILE.npy|DIR"
    )
    anchors: AnchorFile | tuple[float, ...] | None = anchors_option(
        " Or anchors of a YOLO v2 without its last layer (in cells) or of a SqueezeDet (in pixels).  "
        "[default: the published net's]",
        metavar="FILE.py|W,H,W,H,...",
        type=anchors_of,
    )
    min_face: float | None = option(
        "--min-face",
        "Smallest face that an MTCNN finds, in pixels.  [default: 20]",
        metavar="PIXELS",
        type=FiniteRange(0, min_open=True),
    )
    seed: int = seed_option()
    mean: tuple[float, float, float] | None = mean_option(FAMILY_MEANS)
    scale_factor: float | None = scale_factor_option(FAMILY_FACTORS, FAMILY_NAMES)
    threshold: float | None = None
    max_detections: int = 100
    engine: str | None = None

    @cached_property
    def settings(self) -> DetectionSettings:
        settings = super().settings
        means = settings.pixel_means[::-1] if self.rgb else settings.pixel_means  # the detector gets reversed channels
        return dataclasses.replace(settings, test=dataclasses.replace(settings.test, **self._given_test), pixel_means=means)

    @property
    def _given_test(self) -> dict[str, Any]:
        """The TEST settings that options give."""
        scales = self.scale and (self.scale,)
        given = {
            "scales": scales,
            "max_size": self.max_size,
            "nms": self.nms,
            "anchors": self.anchors if isinstance(self.anchors, tuple) else None,
            "min_face": self.min_face,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def inputs(self) -> list[str | None]:
        """The files that the command reads besides the images."""
        return [self.net, *self.weights, self.classes, self.cfg, self.mean_file, self.proposals]

    def pipeline(self, regions: Choice | None = None) -> Pipeline:
        """Return the pipeline on its device. Raises Error for an option that does not apply to the net."""
        if self.engine != "ray":
            self.use_device()
        file, weights = read_net(self.net, warn=False), list[str | WeightsFile](self.weights)
        layers = data_layers(file, self.state_of(file))
        options, text = self, ""
        if layers and image_size(layers[0]):
            file = self.open_net(file, images=True)
            options, text = of_data(self, layers[0]), to_text(file.param)
        elif stage_of(file.param) == 1:
            file, weights = joined(file), [joined_weights(path) for path in self.weights]
            text = to_text(file.param)
            others = " and ".join(Path(path).name for path in following(self.net))
            inform(f"{self.net} is MTCNN's first net; {others} in the same folder run after it")
        net = self.load(file, weights, keep="outputs")
        pipeline = Pipeline(net, options._recipe(net, text or read_text(self.net), regions))
        names, (classes, holder, _) = pipeline.recipe.names, pipeline.detector.family.classes(net)
        if names and len(names) != classes:
            raise Error(f"{self.classes}: {len(names)} classes with the background, but {holder} has {classes}")
        inform_preprocessing(pipeline.preparation(), preprocessing_way(net, self.cfg))
        return pipeline

    def _recipe(self, net: Net, text: str, regions: Choice | None) -> Recipe:
        """Return the recipe of a net. text: its prototxt. Raises Error for an option that does not apply to the net."""
        self._check_family(net)
        names = read_names(self.classes) if self.classes else None
        if names and regions:
            names = first_names(names)
        family, settings = family_of(net), self.settings
        rgb = self.rgb and not family.takes_rgb
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
            means=(self.means or family.means)[:: -1 if rgb else 1],
            rgb=rgb,
            scale_factor=self.scale_factor,
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
        rules = family_of(net).fixed_size(net)
        if rules:
            given = {"--scale": self.scale, "--max-size": self.max_size, "--nms": self.nms, "--proposals": self.proposals}
            no_cfg = {} if rules.settings else {"--cfg": self.cfg}
            refuse(f"here: {rules.fixed_by} fixes the input size and NMS", no_cfg | given)
            if self.cfg:
                rules.check_settings(read_settings(self.cfg), f"--cfg {self.cfg}")
        else:
            refuse(f"here: only {FAMILY_NAMES} take it", {"--scale-factor": self.scale_factor})
        taken = rules.settings if rules else ()
        if "TEST.ANCHORS" not in taken and isinstance(self.anchors, tuple):
            refuse("here: only a SqueezeDet, and a YOLO v2 without its last layer, take it", {"--anchors": self.anchors})
        if "TEST.MIN_FACE" not in taken:
            refuse("here: only an MTCNN takes it", {"--min-face": self.min_face})


@dataclass(frozen=True, kw_only=True)
class BatchOptions(DetectorOptions):
    """--out and the options that go with it."""

    heading: ClassVar[str] = "Many images"
    out: str | None = option("-o --out", "Write Parquet files there; run again to resume.", metavar="DIR|URI")
    engine: str | None = option("--engine", "Where --out runs.  [default: local]", type=click.Choice(["local", "ray"]))
    address: str | None = option(
        "--address", "Address of the Ray cluster.  [default: a new Ray on this machine]", metavar="ADDRESS"
    )
    workers: int | None = option(
        "--workers", "Number of actors on Ray.  [default: one per GPU, or per CPU]", type=click.IntRange(1)
    )
    part_size: int | None = option("--part-size", f"Images per Parquet file.  [default: {PART_SIZE}]", type=click.IntRange(1))

    def check(self, sources: Sequence[str], printing: dict[str, Any]) -> None:
        """Raise Error for options that do not go together, and for a missing package.

        printing: options that work only without --out.
        """
        cluster = {"--address": self.address, "--workers": self.workers}
        if self.out is None:
            given = {"--engine": self.engine, **cluster, "--part-size": self.part_size}
            refuse("without --out, the folder of the Parquet files", given)
            return
        refuse("with --out: its Parquet files have all results", printing)
        if self.engine != "ray":
            refuse("without --engine ray", cluster)
        require_pyarrow()
        if any(source.rstrip("/") == self.out.rstrip("/") or _is_same_folder(source, self.out) for source in sources):
            raise Error(f"--out {self.out}: the images are in this folder: give another one")
        if is_uri(self.out):
            check_opens(self.out)
        else:
            check_folder("--out", self.out)
        if self.engine == "ray":
            from minicaffe.scaling.batch.ray_cluster import require_ray

            require_ray()
            if self.gpu or self.device not in (None, "cpu", "gpu", "auto"):
                device = self.device or f"gpu:{self.gpu}"
                raise Error(f"--device {device}: Ray assigns the GPUs: give cpu, gpu or auto")
            self.use_tf32(self.device != "cpu")

    @property
    def place(self) -> str:
        assert self.out is not None
        return self.out if is_uri(self.out) else str(Path(self.out).absolute())


def _is_same_folder(source: str, out: str) -> bool:
    """Return True if both names lead to the same existing folder."""
    found = identity(source)
    return found is not None and found == identity(out)


def detect_many(pipeline: Pipeline, images: Sources, options: BatchOptions) -> Done:
    """Detect in the images not done yet, with progress and a summary; return the counts of all images. Raises Error."""
    with locked(options.place):
        return _detect_in(pipeline, images, options)


def _detect_in(pipeline: Pipeline, images: Sources, options: BatchOptions) -> Done:
    weights = weights_of(pipeline.net)
    run = begin(images, Folder(options.place), pipeline.recipe, weights, options.part_size or PART_SIZE)
    display = BatchDisplay(run.left)
    try:
        with sigterm_stops():
            if options.engine == "ray":
                where = _on_ray(pipeline.recipe, weights, run, options, display)
            else:
                where = ""
                # in_flight forks, so it precedes the display, which starts a thread.
                with (
                    in_flight(partial(detected, pipeline), run.pictures(), concurrent_images(pipeline, run.left)) as found,
                    display,
                ):
                    run_local(found, run.to_do(), run.folder, display.add)
    except KeyboardInterrupt as stop:
        echo(f"stopped with {run.count_done()} of {run.parts} parts done; run the same command to continue", err=True)
        click.get_current_context().exit(exit_status(stop))
    run.check_done()
    what = "regions" if pipeline.recipe.regions else "detections"
    _summary(run, display, options.out, f"{what}{where}")
    done = run.kept.plus(display.done)
    if run.kept.failed:
        echo(_failed_before(run))
    if done.errors == done.images:
        raise Error(f"all {done.images} images failed: the column error has the reasons")
    for _, line in done.failed:
        echo(f"minicaffe: {line}", err=True)
    return done


def _failed_before(run: Run) -> str:
    """Return a sentence on the failures of earlier runs, and on how to process their images again."""
    numbers = sorted({index // run.part_size for index, _ in run.kept.failed})
    files = ", ".join(map(part_name, numbers)) + " and others" * (run.kept.errors > len(run.kept.failed))
    rows = f"{run.kept.errors} failed image{'s' * (run.kept.errors != 1)}"
    return f"{rows} of an earlier run, in {files}: remove these files from {run.folder.place} to process the images again"


def _on_ray(recipe: Recipe, weights: Weights, run: Run, options: BatchOptions, display: BatchDisplay) -> str:
    """Run on Ray; return the number and kind of workers, for the summary."""
    from minicaffe.scaling.batch.ray_cluster import connected, gpu_problem, node_resources
    from minicaffe.scaling.batch.ray_engine import pool, run_ray

    if not run.left:
        return ""
    with connected(options.address, sum(array.nbytes for arrays in weights.values() for array in arrays)) as ray:
        problem = "not asked for" if options.device == "cpu" else gpu_problem(ray)
        if problem and options.device == "gpu":
            raise Error(f"--device gpu: {problem}")
        # 1: an actor per CPU
        count = options.threads or (threads.get_num_threads() if os.environ.get(threads.VARIABLE) else 1)
        rules = Rules(count, gpu=not problem, tf32=options.tf32, modules=options.allow_module)
        actors = pool(node_resources(ray), options.workers, rules.threads, rules.gpu).at_most(run.parts_left)
        with display:
            run_ray(ray, recipe, rules, weights, run, actors, tell=display.add, say=display.say)
    kind = "GPU" if rules.gpu else "CPU"
    return f", {actors.size} worker{'s' * (actors.size != 1)} on Ray, {kind}"


def _summary(run: Run, display: BatchDisplay, out: str | None, what: str) -> None:
    done = display.done
    before = f", {len(run.before)} of which were there" if run.before else ""
    total = f"{len(run.images)} image{'s' * (len(run.images) != 1)}"
    echo(f"{out}: {total} in {run.parts} part{'s' * (run.parts != 1)}{before}")
    if done.images:
        taken = f"{done.images} image{'s' * (done.images != 1)} in {display.seconds:.1f} s: {display.rate_text()}"
        echo(f"{taken}, {done.detections} {what}")


INTERVAL = 10.0
"""Seconds between lines."""


class BatchDisplay:
    """A context manager that shows progress on stderr. todo: the number of images to do."""

    def __init__(self, todo: int) -> None:
        self.todo, self.done = todo, Done()
        self.start = self.seconds = 0.0
        self._bar: Progress | None = None

    def __enter__(self) -> BatchDisplay:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        from .console import bar

        self.start = self._last = time.monotonic()
        self._bar = bar(MofNCompleteColumn(), TextColumn("images {task.fields[rate]}"), BarColumn(), TimeRemainingColumn())
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("detecting", total=self.todo, rate="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.seconds = time.monotonic() - self.start
        if self._bar:
            self._bar.stop()

    def add(self, done: Done) -> None:
        """Add these counts to the images done."""
        self.done = self.done.plus(done)
        self.seconds = time.monotonic() - self.start
        if self._bar:
            self._bar.update(self._task, completed=self.done.images, rate=self.rate_text())
        elif time.monotonic() - self._last >= INTERVAL:
            self._last = time.monotonic()
            inform(f"{self.done.images} of {self.todo} images, {self.rate_text()}")

    def say(self, sentence: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar:
            self._bar.console.print(sentence)
        else:
            inform(sentence)

    def rate_text(self) -> str:
        """Return "16.2 images/s", and the errors if there are any."""
        errors = f", {self.done.errors} error{'s' * (self.done.errors != 1)}" if self.done.errors else ""
        return f"{self.done.images / max(self.seconds, 1e-9):.1f} images/s{errors}"
