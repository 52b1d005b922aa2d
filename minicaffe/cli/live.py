"""live: a page on which the user can change the net."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import click
import numpy as np
from numpy.typing import NDArray

from minicaffe import threads
from minicaffe.detection.class_names import read_labels
from minicaffe.detection.task import names_for
from minicaffe.errors import Error, on_one_line
from minicaffe.formats.prototxt import NetFile, read_text
from minicaffe.mode import Phase
from minicaffe.net import Net
from minicaffe.tracing.live import Live
from minicaffe.tracing.live_server import PYODIDE, LiveServer, write_site
from minicaffe.tracing.tours import load_tour
from minicaffe.tracing.tracer import Tracer

from .groups import DeviceOptions, NetOptions, classes_option, random_weights_option, weights_option
from .image_options import FAMILY_FACTORS, FAMILY_MEANS, InputOptions, mean_option, scale_factor_option
from .options import argument, option, with_options
from .terminal import echo
from .trace import explain_options, fill, tour_option


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, NetOptions, DeviceOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    more_weights: tuple[str, ...] = weights_option()
    image: str | None = option("--image", "Image for the net's image input, preprocessed as by detect.", metavar="FILE")
    classes: str | None = classes_option()
    tours: tuple[str, ...] = tour_option()
    static: str | None = option(
        "--static", "Write a page that runs Python in the browser, for any web server; then exit.", metavar="FOLDER"
    )
    pyodide: str = option("--pyodide", "With --static: URL of Pyodide's files.", metavar="URL", default=PYODIDE)
    gallery: str | None = option("--gallery", "With --static: URL of your other pages, for a link.", metavar="URL")
    port: int = option("--port", "Port on 127.0.0.1; 0: any free port.", type=click.IntRange(0, 65535), default=0)
    random_weights: bool = random_weights_option()
    mean: tuple[float, float, float] | None = mean_option(FAMILY_MEANS)
    scale_factor: float | None = scale_factor_option(FAMILY_FACTORS)


@with_options(Options)
def live_command(options: Options) -> None:
    """Edit the prototxt NET in the browser and see what every layer does.

    Edit the prototxt, drop another photo or drag a roi: the net runs again from the first layer that changed. Ctrl-C stops the
    command. The texts of a tour keep the numbers of the first pass.

    Only browsers on this computer can open the page. The command never changes NET.

    Example:  minicaffe live test.prototxt net.caffemodel --image photo.jpg
    """
    options.use_device()
    if options.static:
        with TemporaryDirectory(prefix="minicaffe-live-") as photos:
            _write_site(options, Path(options.static), session(options, Path(photos), explain_options()))
        return
    folder = TemporaryDirectory(prefix="minicaffe-live-")
    with folder, LiveServer(session(options, Path(folder.name), explain_options()), options.port) as server:
        echo(server.address)
        server.serve_forever()


def _write_site(options: Options, folder: Path, live: Live) -> None:
    if options.allow_module or options.skip_unknown:
        raise Error("--static cannot be used with --allow-module or --skip-unknown")
    named: dict[str, Path] = {}

    def taken(file: str | None) -> str | None:
        if file is None:
            return None
        name = f"{len(named)}/{on_one_line(Path(file).name)}"
        named[name] = Path(file)
        return name

    values = {
        **dataclasses.asdict(options),
        **{name: taken(getattr(options, name)) for name in ("net", "image", "classes", "cfg")},
        **{name: [taken(file) for file in getattr(options, name)] for name in ("weights", "more_weights")},
        "tours": [],  # the page has them
        "inputs": [(blob, taken(file)) for blob, file in options.inputs],
        "threads": 1,
    }
    write_site(folder, live, {"pyodide": options.pyodide, "gallery": options.gallery, "options": values}, named)
    echo(f"written: {folder}: any web server can show it, as python -m http.server -d {folder}")


def in_browser(values: str) -> Callable[[str], str]:
    """Make the session of these options (JSON) for worker.js; return the function that answers a change in JSON."""
    given = json.loads(values)
    threads.set_num_threads(1)  # Pyodide has no other threads
    live = session(Options(**{**given, "phase": Phase(given["phase"])}), Path(mkdtemp()))
    return lambda change: json.dumps(live.answer(json.loads(change)), allow_nan=False)


def session(options: Options, folder: Path, shared: str = "") -> Live:
    """Return the session for the options.

    folder: where to store the photos that it receives; shared: the options that the page's explain commands have too.
    """
    weights = (*options.weights, *options.more_weights)
    names = read_labels(options.classes) if options.classes else None

    def make(net: NetFile, tracer: Tracer) -> Net:
        made = options.load(net, weights, watch=tracer.watch, say=tracer.notes.append, no_zeros=True)
        tracer.classes, tracer.options = names and names_for(made, names, str(options.classes)), shared
        return made

    def put(net: Net, photo: bytes | None) -> NDArray[np.uint8] | None:
        if photo is None:
            return fill(net, options, options.seed, lambda note: None)
        file = folder / "photo"
        file.write_bytes(photo)
        return fill(net, replace(options, image=str(file)), options.seed, lambda note: None)

    tours = [load_tour(given) for given in options.tours]
    return Live(read_text(options.net), options.net, make, put, lambda: Tracer(backward=False), tours)
