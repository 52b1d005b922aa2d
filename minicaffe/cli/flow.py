"""flow: the optical flow between two images."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np

from minicaffe.blob import Array
from minicaffe.data.drawings import draw_flow
from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.data_inputs import with_inputs
from minicaffe.detection.flow import end_point_error, fill_template, flow_blob, flow_in_image, listed_image, pair_inputs
from minicaffe.errors import Error, on_one_line
from minicaffe.formats.flo import read_flo, write_flo
from minicaffe.formats.prototxt import parse_net, read_text
from minicaffe.net import Net

from .common import check_apart, check_png, check_target, save_png
from .image_options import ShapeOptions, mean_option
from .options import argument, option, with_options
from .pictures import PictureOptions
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, PictureOptions):
    net: str = argument()
    weights_and_sources: tuple[str, ...] = argument(required=True, metavar="WEIGHTS FIRST SECOND")
    out: str | None = option("-o --out", "Write the flow there in Middlebury's format.", metavar="FILE.flo")
    draw: str | None = option("--draw", "Draw the flow in Middlebury's colours.", metavar="FILE.png")
    truth: str | None = option("--truth", "True flow; prints the mean end point error.", metavar="FILE.flo")
    blob: str | None = option(
        "--blob", "Blob of the flow.  [default: predict_flow_final, or the output with its shape]", metavar="BLOB"
    )
    as_json: bool = option("--json", "Print one JSON object instead of lines.")
    mean: tuple[float, float, float] | None = mean_option("0,0,0")
    axes: str = "hw"

    @property
    def means(self) -> tuple[float, float, float]:
        return super().means or (0.0, 0.0, 0.0)


@with_options(Options)
def flow_command(options: Options) -> None:
    """Find the optical flow from the image FIRST to the image SECOND with the FlowNet NET and its WEIGHTS.

    NET has two inputs, images of three channels. Its output is a flow (1, 2, h, w) in pixels of the input. The variables of a
    deploy.prototxt.template ($TARGET_WIDTH$, $ADAPTED_WIDTH$, $SCALE_WIDTH$, ...) are set for the images' size. If the net has
    another size, the images are resized, and the flow is scaled back.

    Example:  minicaffe flow deploy.prototxt.template net.caffemodel 1.png 2.png -o 1.flo --draw flow.png
    """
    options.use_device()
    read = (options.net, *options.weights_and_sources, options.cfg, options.mean_file, options.truth)
    check_target("--out", options.out, read, writes=[".flo"])
    check_png("--draw", options.draw, read)
    check_apart("--out", options.out, "--draw", options.draw)
    names, pixels = _pair(options)
    truth = read_flo(options.truth) if options.truth else None
    flow = _flow(pixels, options)
    found = _values(flow) | ({} if truth is None else {"end_point_error": round(end_point_error(flow, truth), 6)})
    if options.out:
        write_flo(options.out, flow)
    if options.draw:
        save_png(options.draw, draw_flow(flow))
    if options.as_json:
        echo(json.dumps({"first": names[0], "second": names[1]} | found, indent=1))
    else:
        _print(names, found)
    for file in filter(None, (options.out, options.draw)):
        echo(f"  written: {on_one_line(file)}", err=options.as_json)


def _pair(options: Options) -> tuple[list[str], list[Pixels]]:
    """Return the names and pixels of the two images. Raises click.UsageError unless there are two, Error if sizes differ."""
    if len(options.images) != 2:
        raise click.UsageError(f"a flow needs two images, got {len(options.images)}")
    pictures = list(options.images.pictures())
    names, pixels = [one.name for one in pictures], [one.pixels() for one in pictures]
    if pixels[0].shape != pixels[1].shape:
        sizes = " and ".join(f"{name} {one.shape[1]} x {one.shape[0]}" for name, one in zip(names, pixels, strict=True))
        raise Error(f"the two images have different sizes: {sizes} pixels")
    return names, pixels


def _flow(pixels: list[Pixels], options: Options) -> Array:
    """Return the flow (2, H, W) between two images of size (H, W). Raises Error."""
    height, width = pixels[0].shape[:2]
    net_file = parse_net(fill_template(read_text(options.net), height, width), options.net, warn=False)
    net_file = with_inputs(net_file, options.state_of(net_file), partial(listed_image, height=height, width=width))
    net = options.load(net_file, options.weights, keep="outputs")
    options.reshape(net)
    blob = _fill(net, pixels, options)
    values = np.asarray(net.forward(blobs=[blob])[blob])
    if values.ndim != 4 or values.shape[:2] != (1, 2) or not values.size:
        raise Error(f"{blob} of shape {values.shape} does not hold a flow: (1, 2, h, w)")
    high, wide = net.blobs[pair_inputs(net, options.net)[0]].shape[2:]
    return flow_in_image(values[0], (high, wide), height, width)


def _fill(net: Net, pixels: list[Pixels], options: Options) -> str:
    """Put both images into the net's inputs, as a batch of 1; return the name of the blob with the flow. Raises Error."""
    names = pair_inputs(net, options.net)
    for name in names:
        net.blobs[name].reshape(1, *net.blobs[name].shape[1:])
    net.reshape()  # outputs are recognised by their shapes
    for name, image in zip(names, pixels, strict=True):
        options.put_pixels(net, name, image)
    return flow_blob(net, options.blob, options.net)


def _values(flow: Array) -> dict[str, Any]:
    u, v = flow.astype(np.float64)
    length = np.hypot(u, v)
    return {
        "width": flow.shape[2],
        "height": flow.shape[1],
        "mean_length": round(float(length.mean()), 6),
        "greatest_length": round(float(length.max()), 6),
        "mean": [round(float(u.mean()), 6), round(float(v.mean()), 6)],
    }


def _print(names: list[str], found: dict[str, Any]) -> None:
    echo(f"{on_one_line(names[0])} to {on_one_line(names[1])}: {found['width']} x {found['height']} pixels")
    echo(f"  length: mean {found['mean_length']:.2f}, greatest {found['greatest_length']:.2f} pixels")
    echo("  mean: {:.2f} to the right, {:.2f} down".format(*found["mean"]))
    if "end_point_error" in found:
        echo(f"  mean end point error: {found['end_point_error']:.3f} pixels")
