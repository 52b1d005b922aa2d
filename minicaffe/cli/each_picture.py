"""What the commands share that run a net on one image after the other: classify, pose, read, segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import click

from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.data_inputs import data_layers
from minicaffe.detection.inputs import image_input, put_image
from minicaffe.errors import Error, memory_errors_as, on_one_line
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.net import Net
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.run import MOST_NAMED
from minicaffe.scaling.batch.sources import Files, Picture, Sources

from .groups import DeviceOptions, NetOptions, random_weights_option
from .image_options import OrderOptions, ShapeOptions, of_data
from .options import argument, option
from .progress import counted
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class PictureOptions(OrderOptions, NetOptions, DeviceOptions):
    """NET WEIGHTS SOURCE..., --json and --random-weights, and how images are preprocessed."""

    net: str = argument()
    weights_and_sources: tuple[str, ...] = argument(required=True, metavar="WEIGHTS SOURCE...")
    as_json: bool = option("--json", "Print one JSON list instead of lines.")
    random_weights: bool = random_weights_option()

    @property
    def weights(self) -> tuple[str, ...]:
        """The file of weights; none with --random-weights."""
        return () if self.random_weights else self.weights_and_sources[:1]

    @cached_property
    def images(self) -> Sources:
        """The images of the sources. Raises click.UsageError where only weights are given, and Error."""
        sources = self.weights_and_sources[len(self.weights) :]
        if not sources:
            raise click.UsageError(f"Missing argument: nothing follows the weights {self.weights[0]}")
        return find_sources(sources)

    def opened(self) -> Net:
        """The net with its weights. Raises Error."""
        return self.load(self.net, self.weights, keep="outputs")

    def put(self, net: Net, picture: Picture) -> Pixels:
        """Put an image into the net's first input for one, as a batch of 1; its pixels (H, W, 3), blue, green, red. Raises
        Error for a net without such an input, and an image that cannot be read."""
        name, pixels = image_input(net, self.net), picture.pixels()
        self.put_pixels(net, name, pixels)
        return pixels

    def put_pixels(self, net: Net, name: str, pixels: Pixels) -> None:
        """Put an image (H, W, 3), blue, green, red, into this input as a batch of 1. Raises Error."""
        if len(net.blobs[name].data) != 1:
            net.blobs[name].reshape(1, *net.blobs[name].shape[1:])
            net.reshape()  # an output's shape tells what it holds
        put_image(net, name, pixels, self.settings, self.order)
        net.blobs[name].data[...] *= net.dtype.type(self.factor)

    def do_each(self, images: Sources, do: Callable[[Picture], None]) -> int:
        """Call do with each image; an Error of one of several is printed and the others are done. Returns how many failed."""
        failed, pictures = 0, images.pictures()
        for picture in counted(pictures, "images", len(images)) if len(images) > 1 and not self.as_json else pictures:
            try:
                with memory_errors_as(Error, picture.name):
                    do(picture)
            except Error as error:
                if len(images) == 1:
                    raise
                failed += 1
                say_failed(failed, str(error))
        return failed


@dataclass(frozen=True, kw_only=True)
class DataLayerOptions(ShapeOptions, PictureOptions):
    """--shape, for commands whose nets may read their images by data layers, which become inputs."""

    @cached_property
    def net_file(self) -> NetFile:
        """The net's prototxt. Raises Error."""
        return read_net(self.net, warn=False)

    def opened(self) -> Net:
        net = self.load(self.open_net(self.net_file, images=True), self.weights, keep="outputs")
        self.reshape(net)
        return net


Read = TypeVar("Read", bound=DataLayerOptions)


def as_read(options: Read) -> Read:
    """The options; with the mean and the factor of the net's data layer where it has one and they say none. Raises Error."""
    layers = data_layers(options.net_file, options.state_of(options.net_file))
    return of_data(options, layers[0]) if layers else options


def say_failed(count: int, text: str) -> None:
    """Print the error of an image, the count-th that failed; of those after MOST_NAMED, once, that there are more."""
    if count <= MOST_NAMED + 1:
        echo(f"minicaffe: {on_one_line(text)}" if count <= MOST_NAMED else "minicaffe: further errors are not shown", err=True)


def check_failed(failed: int, total: int, images: Sources, where: str = "") -> None:
    """Raises Error if images failed. where: the reasons are, if not on stderr."""
    if failed:
        listed = failed == total and any(isinstance(stretch, Files) and stretch.listed for stretch in images.stretches)
        hint = " (a list has one path or URI per line, relative to the working directory)" * listed
        raise Error(f"{failed} of {total} images could not be done{hint}{where}")
