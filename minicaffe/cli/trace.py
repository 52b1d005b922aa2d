"""trace: a page, a table or arrays that show what every layer did; progress is on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import join
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from click.core import ParameterSource
from numpy.typing import NDArray

from minicaffe.data.images import load_image
from minicaffe.detection.class_names import read_labels
from minicaffe.detection.families import family_of, rows_end
from minicaffe.detection.family import FindOptions
from minicaffe.detection.inputs import image_inputs, put_array
from minicaffe.detection.rows import RowsFamily
from minicaffe.detection.task import names_for
from minicaffe.errors import Error
from minicaffe.files import unlinked
from minicaffe.formats.arrays import write_npz
from minicaffe.hooks import debug_info
from minicaffe.net import Net
from minicaffe.tracing.tours import SHIPPED, load_tour
from minicaffe.tracing.trace import BlobShot, Statistics, Step
from minicaffe.tracing.trace_facts import found_detections, gradient_seed
from minicaffe.tracing.tracer import TILE_BYTES, Tracer
from minicaffe.tracing.units import parsed

from .common import ARRAYS, PAGES, check_apart, check_target, print_table, shape_text
from .console import bar
from .explain import explain_command
from .groups import DeviceOptions, NetOptions, backward_option, random_weights_option, weights_option
from .image_options import (
    FAMILY_FACTORS,
    FAMILY_MEANS,
    InputOptions,
    RoidbOptions,
    inform_preprocessing,
    mean_option,
    scale_factor_option,
)
from .log import logging_to, to_stderr
from .options import argument, option, with_options
from .terminal import echo, inform, warn

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text


PAGE = "trace.html"


def tour_option() -> Any:
    """Return the option of the tours that a page offers."""
    text = f"Offer a guided tour on the page: {', '.join(SHIPPED)}, or your own file; may be repeated."
    return option("--tour", text, metavar="NAME|FILE.json")


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, RoidbOptions, NetOptions, DeviceOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    more_weights: tuple[str, ...] = weights_option()
    image: str | None = option("--image", "Image for the net's image input, preprocessed as by detect.", metavar="FILE")
    backward: bool = backward_option("from the start that --seed-gradient selects")
    seed_gradient: str | None = option(
        "--seed-gradient",
        "Where backward starts (implies --backward): the losses, ones at the outputs, or the score of detection K (0 is the"
        " best).  [default: loss if the net has one, else detection:0, else ones]",
        metavar="loss|ones|detection:K",
    )
    cam: str | None = option("--cam", "Show on the page where LAYER's maps raise the best scores (Grad-CAM).", metavar="LAYER")
    deconv: tuple[str, ...] = option(
        "--deconv",
        "Show on the page which pixels raise a unit of LAYER: by the gradient, deconvolution and guided backpropagation; may be"
        " repeated.  [default unit: the greatest number, of the channel or of all]",
        metavar="LAYER[:CHANNEL[,ROW,COLUMN]]",
    )
    until: str | None = option("--until", "Last layer to run forward.", metavar="LAYER")
    out: str | None = option(
        "-o --out", f"Page to write.  [default: {PAGE} without --text, --npz and --debug-info]", metavar="FILE.html"
    )
    tours: tuple[str, ...] = tour_option()
    text: bool = option("--text", "Print a table with a line for each layer, while the layers run.")
    npz: str | None = option("--npz", "Write all blobs; with --backward also all gradients.", metavar="FILE.npz")
    debug: bool = option("--debug-info", "Print Caffe's debug_info lines on stderr.")
    mean: tuple[float, float, float] | None = mean_option(FAMILY_MEANS)
    scale_factor: float | None = scale_factor_option(FAMILY_FACTORS)

    @property
    def goes_back(self) -> bool:
        """True if backward runs."""
        return self.backward or self.seed_gradient is not None

    def read_files(self) -> list[str | None]:
        return [*super().read_files(), self.classes, self.roidb, *self.tours]

    random_weights: bool = random_weights_option()


@with_options(Options)
def trace_command(options: Options) -> None:
    """Run the prototxt NET once with WEIGHTS and write a page that shows every layer at work.

    The page is one file and works offline. If a layer fails, the page shows the net up to that layer.

    Example:  minicaffe trace test.prototxt net.caffemodel --image photo.jpg -o trace.html

    Example:  minicaffe trace train_val.prototxt --phase TRAIN --backward --text
    """
    options.use_device()
    weights = (*options.weights, *options.more_weights)
    default = options.tours or not (options.text or options.npz or options.debug)
    out = options.out or (str(unlinked(PAGE)) if default else None)
    read = [options.net, *weights, *options.read_files()]
    check_target("--out", out, read, writes=PAGES)
    check_target("--npz", options.npz, read, writes=ARRAYS)
    check_apart("--out", out, "--npz", options.npz)
    names = read_labels(options.classes) if options.classes else None
    tracer = Tracer(path=out, backward=options.goes_back, tile_bytes=TILE_BYTES if out else 0)
    tracer.options, tracer.tours = explain_options(), [load_tour(given) for given in options.tours]
    with _reported(tracer), TraceTable(tracer) if options.text else progress(tracer), tracer:
        net = _run(tracer, options, weights, names)
    if out:
        echo(f"written: {out}")
    if options.npz:
        write_arrays(net, options.npz, options.until, options.goes_back)
        echo(f"written: {options.npz}")


def _run(tracer: Tracer, options: Options, weights: Sequence[str], names: Sequence[str] | None) -> Net:
    """Load the net, fill its inputs and run it while tracer records. names: of classes, in the file --classes."""

    def say(note: str) -> None:
        warn(note)
        tracer.notes.append(note)

    until = options.until
    net = options.load(options.net, weights, watch=tracer.watch, say=say, no_zeros=True)
    tracer.classes = names and names_for(net, names, str(options.classes))
    if until is not None:
        net.index_of(until)
    _check_pictures(net, options, has_page=tracer.path is not None)
    for tour in tracer.tours:
        tour.check_layers([layer.name for layer in net.layers])
    if options.roidb:
        tracer.classes = options.set_roidb(net, options.settings) or tracer.classes
    tracer.image = fill(net, options, options.seed, say, options.until)
    lines = partial(_debug_lines, net, options.debug)
    with lines():
        net.forward(end=until)
    _add_pictures(tracer, net, options)
    if options.goes_back:
        with lines():
            seed = gradient_seed(net, options.seed_gradient, until, found_detections(net, tracer.image), tracer.classes)
            tracer.gradient = seed.words
            net.backward_from_to(seed.layer, 0)
    return net


@contextmanager
def _debug_lines(net: Net, wanted: bool) -> Iterator[None]:
    """In the block, print Caffe's debug_info lines on stderr, if wanted."""
    with logging_to(to_stderr) if wanted else nullcontext(), debug_info(net, wanted):
        yield


def _check_pictures(net: Net, options: Options, *, has_page: bool) -> None:
    """Raise Error for --cam and --deconv without a page, or of a layer that does not run."""
    names = [("--cam", options.cam), *(("--deconv", given) for given in options.deconv)]
    for name, given in names:
        if given is None:
            continue
        if not has_page:
            raise Error(f"{name} {given} is shown on the page: add -o {PAGE}")
        layer = given if name == "--cam" else parsed(net, given)[0]
        if net.index_of(layer) > last_layer(net, options.until) or (name == "--cam" and options.until):
            raise Error(f"{name} {given}: leave out --until {options.until}, which ends the forward too early")


def _add_pictures(tracer: Tracer, net: Net, options: Options) -> None:
    if options.cam:
        tracer.add_class_maps(options.cam)
    for given in options.deconv:
        tracer.add_unit(*parsed(net, given))


def last_layer(net: Net, until: str | None) -> int:
    """Return the number of the last layer of a forward."""
    return len(net.layers) - 1 if until is None else net.index_of(until)


def explain_options() -> str:
    """Return the given options that choose the net and its inputs, as text for explain, which has them too."""
    context, parts = click.get_current_context(), []
    shared = {p.name for p in explain_command.params if isinstance(p, click.Option)} - {"backward", "more_weights", "cam"}
    for given in context.command.params:
        name = str(given.name)
        if name in shared and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            for each in value if given.multiple else [value]:
                parts += [given.opts[0], *([] if each is True else [_written(each)])]
    return join(parts)


def _written(value: object) -> str:
    """Return an option's value as on the command line: BLOB=FILE, or numbers with commas."""
    if isinstance(value, tuple):
        return ("=" if isinstance(value[0], str) else ",").join(map(_written, value))
    return str(value)


@contextmanager
def _reported(tracer: Tracer) -> Iterator[None]:
    """If a layer fails in the block, print the page's path, and raise an error that names the layer."""
    try:
        yield
    except Exception as error:
        if tracer.error is None:
            raise
        if tracer.path:
            echo(f"written, up to the layer that failed: {tracer.path}", err=True)
        if isinstance(error, Error | OSError | MemoryError):
            raise
        layer = tracer.trace.layers[tracer.error.layer]
        raise Error(f'{layer.type} layer "{layer.name}": {tracer.error.way}: {error!r}') from error


def fill(
    net: Net, options: InputOptions, seed: int, say: Callable[[str], None], until: str | None = None
) -> NDArray[np.uint8] | None:
    """Fill the inputs, as detect does for an image; return the image, if any. Raises Error for a net without layers."""
    if not net.layers:
        raise Error(f"{net.file}: the net has no layers: there is nothing to trace")
    options.reshape(net)
    names, files = image_inputs(net), options.files(net)
    file = next((file for name, file in files.items() if name in names and Path(file).suffix.lower() != ".npy"), None)
    family = family_of(net) if file and rows_end(net) and net.blobs[names[0]].shape[1] == 3 else None
    if file and isinstance(family, RowsFamily):
        image = load_image(file)  # SSD's means are not those of the settings
        step = -1 if options.rgb and not family.takes_rgb else 1
        prepared = FindOptions(means=(options.means or family.means)[::step], scale_factor=options.scale_factor)
        put_array(net, names[0], family.prepared(net, image[..., ::step], prepared))
        inform_preprocessing(family.preparation(net, prepared))
        return image
    for note in options.fill(net, seed, until):
        say(note)
    return load_image(file) if file else None


def write_arrays(net: Net, path: str, until: str | None, backward: bool) -> None:
    """Write data/BLOB, and after backward diff/BLOB and weight_diff/LAYER/NUMBER, without blobs of layers after `until`."""
    last = last_layer(net, until)
    names = dict.fromkeys(name for node in net.nodes[: last + 1] for name in node.top_names)
    arrays = {f"data/{name}": net.blobs[name].read_data() for name in names}
    if backward:
        arrays |= {f"diff/{name}": net.blobs[name].read_diff() for name in names}
        for layer in net.layers[: last + 1]:
            arrays |= {f"weight_diff/{layer.name}/{i}": blob.read_diff() for i, blob in enumerate(layer.blobs)}
    write_npz(path, arrays)


EVERY = 10.0
"""Seconds between lines."""


@contextmanager
def progress(tracer: Tracer) -> Iterator[None]:
    """Show, in the block, which step tracer records."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    shown = bar(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if shown is None:
        tracer.on_step = _Lines(tracer)
        yield
        return
    with shown:
        task = shown.add_task("", total=None)
        tracer.on_step = lambda step: shown.update(
            task, description=_at(tracer, step), completed=len(tracer.steps), total=tracer.steps_to_come
        )
        yield


class _Lines:
    """A callback that prints a line on stderr every ten seconds."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.next = tracer, time.monotonic() + EVERY

    def __call__(self, step: Step) -> None:
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            total = self.tracer.steps_to_come
            inform(f"{_at(self.tracer, step)}: step {len(self.tracer.steps)}{f' of {total}' if total else ''}")


def _at(tracer: Tracer, step: Step) -> str:
    return f"{step.kind} of {tracer.layer_of(step).name}"


COLUMNS = ("layer", "type", "blobs", "ms", "min / mean / max")
ROOM = 8
"""Free lines of a terminal below the growing table."""


class TraceTable:
    """A context manager that prints tracer's steps as a table at the end; a terminal shows the last lines meanwhile."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._rows: list[list[str | Text]] = []
        self._bad: list[str] = []
        self._live: Live | None = None

    def __enter__(self) -> TraceTable:
        self._tracer.on_step = self._step
        if sys.stdout.isatty():
            from rich.live import Live

            from .console import PlainConsole

            meanwhile = sys.stderr.isatty()  # prints stderr above the table
            self._live = Live(console=PlainConsole(), transient=True, auto_refresh=False, redirect_stderr=meanwhile)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live:
            self._live.stop()
        net = self._tracer.net
        if net is not None and self._rows:
            print_table(f"{net.name or net.file} ({net.phase})", COLUMNS, self._rows, right=["ms"])
        if self._bad:
            more = f" and {len(self._bad) - 1} more" if len(self._bad) > 1 else ""
            warn(f"not a number: first in {self._bad[0]}{more}")

    def _step(self, step: Step) -> None:
        if step.kind not in ("forward", "backward"):
            return
        assert self._tracer.net is not None
        layer = self._tracer.net.layers[step.layer]
        back = " (backward)" if step.kind == "backward" else ""
        first = [layer.name + back, layer.type]
        ms = "" if step.ms is None or math.isnan(step.ms) else f"{step.ms:.2f}"
        if not step.blobs:
            self._rows.append([*first, "", ms, ""])
        for blob in step.blobs:
            self._rows.append([*first, *_columns(blob, ms)])
            first, ms = ["", ""], ""
            if blob.shot.statistics.nan or blob.shot.statistics.inf:
                self._bad.append(f'{step.kind} of layer "{layer.name}": {blob.name}')
        if self._live:
            self._show(self._live)

    def _show(self, live: Live) -> None:
        from rich.table import Table

        table = Table(*COLUMNS, box=None)
        for row in self._rows[-max(live.console.height - ROOM, 4) :]:  # Live cannot scroll: only what fits
            table.add_row(*row)
        live.update(table, refresh=True)


def _columns(blob: BlobShot, ms: str) -> list[str | Text]:
    """Return the cells for a blob: its name and shape, the time, its statistics."""
    diff = " diff" * (blob.part == "diff")
    return [f"{blob.name}{diff} {shape_text(blob.shot.shape)}", ms, statistics_cell(blob.shot.statistics)]


def statistics_cell(found: Statistics) -> str | Text:
    """Return min, mean and max, or the number of NaN and infinite values."""
    if not found.count:
        return "empty"
    if found.nan or found.inf:
        from rich.text import Text

        return Text(f"!! {found.nan} NaN, {found.inf} inf of {found.count}", "bold red")
    return f"{found.min:.4g} / {found.mean:.4g} / {found.max:.4g}"
