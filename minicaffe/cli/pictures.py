"""The options of commands that read images, which they process one after the other or several at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import click
from PIL import Image

from minicaffe import threads
from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.data_inputs import data_layers
from minicaffe.detection.inputs import image_input, put_image
from minicaffe.errors import Error, memory_errors_as, on_one_line
from minicaffe.files import unlinked
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.kernels import expect
from minicaffe.layer import Layer
from minicaffe.layer_list import Node
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST, gpu_mode
from minicaffe.net import Net
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.recipe import Pipeline
from minicaffe.scaling.batch.run import MOST_NAMED
from minicaffe.scaling.batch.sources import Files, Picture, Sources
from minicaffe.scaling.in_flight import CAN_FORK, in_flight
from minicaffe.tracing.summary import summarize

from .common import counted, identity, save_png
from .groups import DeviceOptions, NetOptions, random_weights_option
from .image_options import OrderOptions, ShapeOptions, inform_preprocessing, of_data
from .options import argument, option
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """NET WEIGHTS SOURCE..., and --random-weights, which takes the place of WEIGHTS."""

    heading: ClassVar[str] = "The net"
    net: str = argument()
    weights_and_sources: tuple[str, ...] = argument(required=True, metavar="WEIGHTS SOURCE...")
    random_weights: bool = random_weights_option()

    @property
    def weights(self) -> tuple[str, ...]:
        return () if self.random_weights else self.weights_and_sources[:1]

    @property
    def sources(self) -> tuple[str, ...]:
        """The arguments after WEIGHTS. Raises click.UsageError if there are none."""
        sources = self.weights_and_sources[len(self.weights) :]
        if not sources:
            raise click.UsageError(f"Missing argument 'SOURCE': give it after the weights {self.weights[0]}")
        return sources


class Found(NamedTuple):
    """The findings in an image: the values for --json, lines, and pictures by the file to write."""

    values: dict[str, Any]
    lines: list[str]
    pictures: Mapping[Path, Image.Image] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class PictureOptions(SourceOptions, OrderOptions, NetOptions, DeviceOptions):
    """The options of commands that run a net on one image at a time."""

    as_json: bool = option("--json", "Print one JSON list instead of lines.")

    @cached_property
    def images(self) -> Sources:
        """The images of the sources. Raises Error, and click.UsageError if only weights are given."""
        return find_sources(self.sources)

    def opened(self) -> Net:
        """Return the net with its weights. Raises Error."""
        expect(len(self.images))
        net = self.load(self.net, self.weights, keep="outputs")
        inform_preprocessing(self.preparation)
        return net

    def put(self, net: Net, picture: Picture) -> Pixels:
        """Put an image into the net's first image input, as a batch of 1; return its pixels (H, W, 3), blue, green, red.

        Raises Error for a net without such an input, and for an image that cannot be read.
        """
        name, pixels = image_input(net, self.net), picture.pixels()
        self.put_pixels(net, name, pixels)
        return pixels

    def put_pixels(self, net: Net, name: str, pixels: Pixels) -> None:
        """Put an image (H, W, 3), blue, green, red, into this input as a batch of 1. Raises Error."""
        if len(net.blobs[name].data) != 1:
            net.blobs[name].reshape(1, *net.blobs[name].shape[1:])
            net.reshape()  # outputs are recognised by their shapes
        put_image(net, name, pixels, self.settings, self.order)
        net.blobs[name].data[...] *= net.dtype.type(self.factor)

    def output_names(self, folder: str, suffix: str, *others: str | None) -> list[Path]:
        """Return the output file of each image: see output_names. others: further files that the command reads."""
        return output_names(Path(folder), self.images, (self.net, *self.weights, *others, self.mean_file), suffix)

    def report_each(self, images: Sources, find: Callable[[Picture], Found], *, ensure_ascii: bool = True) -> None:
        """Report the result of find for each image. If one of several images fails, print its Error and continue.

        Raises Error if images failed.
        """
        failed, results, pictures = 0, list[dict[str, Any]](), images.pictures()
        for picture in counted(pictures, "images", len(images)) if len(images) > 1 and not self.as_json else pictures:
            try:
                with memory_errors_as(Error, picture.name):
                    results.append(self.report(find(picture)))
            except Error as error:
                if len(images) == 1:
                    raise
                failed += 1
                say_failed(failed, str(error))
        self.print_json(results, ensure_ascii=ensure_ascii)
        check_failed(failed, len(images), images)

    def report(self, found: Found) -> dict[str, Any]:
        """Print the lines and write the pictures. Return the values."""
        if not self.as_json:
            echo("\n".join(found.lines))
        for file, picture in found.pictures.items():
            save_png(file, picture)
        if found.pictures:
            echo(f"  drawn: {', '.join(on_one_line(str(file)) for file in found.pictures)}", err=self.as_json)
        return found.values

    def print_json(self, results: list[dict[str, Any]], *, ensure_ascii: bool = True) -> None:
        """Print the values of all images if --json is given."""
        if self.as_json:
            echo(json.dumps(results, indent=1, ensure_ascii=ensure_ascii))


@dataclass(frozen=True, kw_only=True)
class DataLayerOptions(ShapeOptions, PictureOptions):
    """--shape, for commands whose nets may have data layers for their images; these layers become inputs."""

    @cached_property
    def net_file(self) -> NetFile:
        """The net's prototxt. Raises Error."""
        return read_net(self.net, warn=False)

    def opened(self) -> Net:
        expect(len(self.images))
        net = self.load(self.open_net(self.net_file, images=True), self.weights, keep="outputs")
        self.reshape(net)
        inform_preprocessing(self.preparation)
        return net


Item = TypeVar("Item")
Result = TypeVar("Result")
Read = TypeVar("Read", bound=DataLayerOptions)


def as_read(options: Read) -> Read:
    """Return the options; a mean or factor that is not given is that of the net's data layer. Raises Error."""
    layers = data_layers(options.net_file, options.state_of(options.net_file))
    return of_data(options, layers[0]) if layers else options


def say_failed(count: int, text: str) -> None:
    """Print an image's error, the count-th one; after MOST_NAMED, print once that further errors are not shown."""
    if count <= MOST_NAMED + 1:
        echo(f"minicaffe: {on_one_line(text)}" if count <= MOST_NAMED else "minicaffe: further errors are not shown", err=True)


def check_failed(failed: int, total: int, images: Sources, where: str = "") -> None:
    """Raise Error if images failed. where: where the reasons are, if not on stderr."""
    if failed:
        listed = failed == total and any(isinstance(stretch, Files) and stretch.listed for stretch in images.stretches)
        hint = " (a list has one path or URI per line, relative to the working directory)" * listed
        raise Error(f"{failed} of {total} images failed{hint}{where}")


def output_names(folder: Path, images: Sources, inputs: Sequence[str | None], suffix: str) -> list[Path]:
    """Return the output file of each image: STEM and suffix in the folder, or STEM-2 and so on.

    The names are unique even where a file system ignores case, and no file replaces an image or another input.
    """
    known = {found for path in (*inputs, *images.names()) if path and (found := identity(path))}  # by inode, to find links
    names: dict[str, Path] = {}
    numbers: dict[str, Iterator[str]] = {}
    for name in images.names():
        stem = Path(name).stem
        # Continues after the last image of this stem, for linear time.
        endings = numbers.setdefault(stem.lower(), chain([""], (f"-{n}" for n in count(2))))
        tries = (folder / f"{stem}{ending}{suffix}" for ending in endings)
        path = next(path for path in tries if path.name.lower() not in names and identity(path) not in known)
        names[path.name.lower()] = unlinked(path)
    return list(names.values())


MOST_BYTES = 128 << 20
"""The most memory that a small net needs besides its weights, which the processes share. The layers of larger ones (at 600 x
1000, ZF needs 187 MiB and VGG16 629) keep all threads busy by themselves."""


@contextmanager
def in_processes(
    pipeline: Pipeline, do: Callable[[Item], Result], items: Iterable[Item], total: int, quiet: bool = False
) -> Iterator[Iterable[Result]]:
    """Give an iterable of do's results for the items, in order; unless quiet, a progress bar counts them."""
    with in_flight(do, iter(items), concurrent_images(pipeline, total)) as results:
        yield counted(results, "images", total) if total > 1 and not quiet else results


def concurrent_images(pipeline: Pipeline, images: int) -> int:
    """Return the number of processes that compute images: the number of threads for a small net, otherwise 1.

    If it is more than 1, the net's loops have been compiled.
    """
    expect(images)
    if not _may_be_several(pipeline.net.nodes, images):
        return 1
    pipeline.detector.family.reshape_to_largest(pipeline.net)
    return _several_if_small(pipeline.net, images)


def concurrent_batches(net: Net, batches: int) -> tuple[int, int]:
    """Return the number of processes that compute the net's own batches, and the number of layers that read them.

    One process must run these first layers for all batches in turn. The number of layers is 0 if there is one process.
    """
    expect(batches)
    first = max((i + 1 for i, node in enumerate(net.nodes) if not node.bottoms), default=0)
    head = all(not node.bottoms or isinstance(node.layer, Split) for node in net.nodes[:first])
    if not head or not _may_be_several(net.nodes[first:], batches):
        return 1, 0
    count = _several_if_small(net, batches)
    return count, first if count > 1 else 0


def _may_be_several(nodes: Sequence[Node], items: int) -> bool:
    free = items > 1 and threads.get_num_threads() > 1 and CAN_FORK and not gpu_mode()
    return free and bool(nodes) and all(_is_independent(node.layer) for node in nodes)


def _several_if_small(net: Net, items: int) -> int:
    """Return the number of threads if the net needs little memory at its inputs' current shapes, otherwise 1."""
    net.compile_loops(ahead=True)
    try:
        needs = summarize(net).memory
    except Error:  # for example, the largest image exceeds a limit
        return 1
    peak = needs.peak if needs.peak_of_outputs is None or not net.plan.memory else needs.peak_of_outputs
    if peak - needs.weights > MOST_BYTES:
        return 1
    net.compile_loops()  # once for all processes
    return min(threads.get_num_threads(), items)


def _is_independent(layer: Layer) -> bool:
    """Return True if a forward depends on no earlier one and changes only the tops. A user's class counts as dependent."""
    return type(layer).__module__.startswith("minicaffe.layers.") and layer.phase == TEST and not layer.stateful
