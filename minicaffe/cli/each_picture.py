"""What the commands share that run a net on one image after the other: classify, pose, read, segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import click

from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.inputs import image_inputs, put_image
from minicaffe.errors import Error, on_one_line
from minicaffe.net import Net
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.sources import Picture, Sources

from .groups import DeviceOptions, NetOptions, random_weights_option
from .image_options import OrderOptions
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
        name, pixels = self.image_input(net), picture.pixels()
        self.put_pixels(net, name, pixels)
        return pixels

    def image_input(self, net: Net) -> str:
        """The net's first input for an image. Raises Error for a net without one."""
        inputs = image_inputs(net)
        if not inputs:
            raise Error(f"{self.net}: the net has no input for an image; its inputs are {', '.join(net.inputs) or 'none'}")
        return inputs[0]

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
                do(picture)
            except Error as error:
                if len(images) == 1:
                    raise
                failed += 1
                echo(f"minicaffe: {on_one_line(str(error))}", err=True)
        return failed


def check_failed(failed: int, images: Sources) -> None:
    """Raises Error if images failed."""
    if failed:
        raise Error(f"{failed} of {len(images)} images could not be done")
