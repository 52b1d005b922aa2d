"""minicaffe trace"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from minicaffe.data.images import load_image
from minicaffe.debug_info import debug_info
from minicaffe.detection.detect_ssd import SSD_MEANS, prepare_ssd_image, ssd_layer
from minicaffe.detection.inputs import fill_inputs, put_array, start_backward
from minicaffe.errors import Error
from minicaffe.formats.arrays import write_npz
from minicaffe.net import Net
from minicaffe.tracing.tracer import TILE_BYTES, Tracer

from .common import (
    allow_modules,
    check_apart,
    check_target,
    device_options,
    load_net,
    numbers,
    phase_of,
    phase_option,
    say_loudly,
    seed_option,
    state_options,
)
from .inputs import (
    factor_option,
    image_inputs,
    input_option,
    parse_inputs,
    reshape_inputs,
    settings_given,
    shape_option,
    with_image,
)
from .log import logging_to, to_stderr
from .terminal import echo
from .trace_table import TraceTable

PAGE = "trace.html"


@click.command()
@click.argument("net")
@click.argument("weights", nargs=-1)
@click.option("--weights", "more_weights", multiple=True, metavar="FILE", help="WEIGHTS may be given so too; may be repeated.")
@input_option
@click.option("--image", metavar="FILE", help="For the net's image input, made ready as detect does, and shown on the page.")
@shape_option
@click.option("--cfg", metavar="FILE.yml", help="Settings in py-faster-rcnn's format, for --image.")
@click.option(
    "--mean", metavar="B,G,R", help="Subtracted from images.  [default: 102.9801,115.9465,122.7717; SSD nets: 104,117,123]"
)
@factor_option
@click.option(
    "--backward", is_flag=True, help="Run backward too: from the losses; in a net without any, from ones at its outputs."
)
@click.option("--until", metavar="LAYER", help="The last layer that runs forward.")
@click.option("-o", "--out", metavar="FILE.html", help=f"The page.  [default: {PAGE}, unless another output is asked for]")
@click.option("--text", is_flag=True, help="A table in the terminal, line by line as layers run.")
@click.option("--npz", metavar="FILE.npz", help="Write every blob, and with --backward every diff and weight gradient.")
@click.option("--debug-info", "debug", is_flag=True, help="Caffe's debug_info lines, on stderr.")
@device_options
@phase_option
@seed_option
@state_options
def command(
    net: str,
    weights: tuple[str, ...],
    more_weights: tuple[str, ...],
    inputs: tuple[str, ...],
    image: str | None,
    shapes: tuple[str, ...],
    cfg: str | None,
    mean: str | None,
    scale_factor: float,
    backward: bool,
    until: str | None,
    out: str | None,
    text: bool,
    npz: str | None,
    debug: bool,
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Run the net in the prototxt NET once, with WEIGHTS, and write one page that shows what every layer did.

    The page needs no network and no other file. A net that fails in a layer is shown up to there.

    Example:  minicaffe trace test.prototxt net.caffemodel --image photo.jpg -o trace.html

    Example:  minicaffe trace train_val.prototxt --phase TRAIN --backward --text
    """
    allow_modules(allow_module)
    weights = (*weights, *more_weights)
    if out is None and not (text or npz or debug):
        out = PAGE
    read = [net, *weights, *parse_inputs(inputs).values(), image, cfg]
    check_target("--out", out, read)
    check_target("--npz", npz, read)
    check_apart("--out", out, "--npz", npz)
    settings = settings_given(cfg, mean=mean)
    tracer = Tracer(path=out, backward=backward, weights=weights, tile_bytes=TILE_BYTES if out else 0)

    def say(note: str) -> None:
        say_loudly(note)
        tracer.notes.append(note)

    def run() -> Net:
        loaded = load_net(
            net,
            weights,
            phase=phase_of(phase),
            seed=seed,
            level=level,
            stages=stages,
            watch=tracer.watch,
            say=say,
            no_zeros=True,
            settings=settings,
        )
        if until is not None:
            loaded.index_of(until)
        reshape_inputs(loaded, shapes)
        tracer.image = _fill(loaded, parse_inputs(inputs), image, (mean, scale_factor), seed, until, say)
        with logging_to(to_stderr) if debug else nullcontext(), debug_info(loaded, debug):
            loaded.forward(end=until)
            if backward:
                start_backward(loaded, until)
                loaded.backward(start=until)
        return loaded

    with _said_plainly(tracer), TraceTable(tracer) if text else nullcontext(), tracer:
        loaded = run()
    if out:
        echo(f"written: {out}")
    if npz:
        write_arrays(loaded, npz, until, backward)
        echo(f"written: {npz}")


@contextmanager
def _said_plainly(tracer: Tracer) -> Iterator[None]:
    """A run that a layer ends: say where its page is, and make an Error of what the layer's own code raised."""
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


def _fill(
    net: Net,
    files: dict[str, str],
    photo: str | None,
    preparation: tuple[str | None, float],
    seed: int,
    until: str | None,
    say: Callable[[str], None],
) -> NDArray[np.uint8] | None:
    """Fill the inputs; the image that one of them holds. preparation: --mean and --scale-factor."""
    mean, factor = preparation
    names = image_inputs(net)
    files = with_image(net, files, photo)
    given = next((file for name, file in files.items() if name in names and Path(file).suffix.lower() != ".npy"), None)
    if given and ssd_layer(net):
        means = numbers("--mean", mean, 3) if mean else SSD_MEANS
        image = load_image(given)
        put_array(net, names[0], prepare_ssd_image(image, net.blobs[names[0]].shape[2:], means, factor))
        return image
    for note in fill_inputs(net, files, seed=seed, factor=factor, until=until):
        say(note)
    return load_image(given) if given else None


def write_arrays(net: Net, path: str, until: str | None, backward: bool) -> None:
    """data/BLOB, and after backward diff/BLOB and weight_diff/LAYER/NUMBER; blobs of layers after `until` are left out."""
    last = len(net.layers) - 1 if until is None else net.index_of(until)
    names = dict.fromkeys(name for node in net.nodes[: last + 1] for name in node.top_names)
    arrays = {f"data/{name}": net.blobs[name].read_data() for name in names}
    if backward:
        arrays |= {f"diff/{name}": net.blobs[name].read_diff() for name in names}
        for layer in net.layers[: last + 1]:
            arrays |= {f"weight_diff/{layer.name}/{i}": blob.read_diff() for i, blob in enumerate(layer.blobs)}
    write_npz(path, arrays)
