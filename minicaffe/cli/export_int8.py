"""minicaffe export --int8: the model in 8 bits, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from minicaffe.data.images import load_image
from minicaffe.data.roidb import load_roidb
from minicaffe.detection.inputs import image_input, put_image
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.porting.agreement import difference
from minicaffe.scaling.batch.find import find_sources

from .common import shape_text, warn
from .image_options import InputOptions
from .options import option
from .terminal import echo

if TYPE_CHECKING:
    from minicaffe.porting.onnx import Whole

MOST = 100


@dataclass(frozen=True, kw_only=True)
class Int8Options:
    """--int8 and what goes with it."""

    int8: bool = option("--int8", "Convolutions and inner products in 8 bits, by onnxruntime's static quantization.")
    calibrate: tuple[str, ...] = option(
        "--calibrate", f"--int8: images that tell the ranges, at most {MOST}; may be repeated.", metavar="SOURCE"
    )
    roidb: str | None = option(
        "--roidb", "--int8 --with-boxes: labelled images, for the mAP before and after.", metavar="FILE.json|VOC-FOLDER"
    )

    def check_int8(self, whole: Whole | None) -> None:
        """Raises an error for options that do not go together."""
        if not self.int8 and (self.calibrate or self.roidb):
            raise click.UsageError("--calibrate and --roidb are for --int8")
        if self.int8 and not self.calibrate:
            raise click.UsageError("--int8 needs --calibrate: images like those that the model will see")
        if self.roidb and not (whole and whole.boxes):
            raise click.UsageError("--roidb compares boxes: give --with-boxes too")

    def to_int8(self, net: Net, model: Path, options: InputOptions, whole: Whole | None) -> None:
        """Quantize the model, and print what it costs. Raises Error."""
        from minicaffe.porting.onnx.int8 import Labelled, mean_average_precision, outputs_on, quantize

        feeds = _feeds(net, self.calibrate, options, whole)
        labelled = []
        if self.roidb:
            for entry in load_roidb(self.roidb)[0]:
                pixels = load_image(entry["image"]) if isinstance(entry["image"], str) else np.asarray(entry["image"])
                labelled.append(Labelled(pixels, np.asarray(entry["boxes"]), np.asarray(entry["gt_classes"])))
        tests = [whole.inputs(net, image.pixels) for image in labelled] if whole else []
        before = outputs_on(model, [feeds[0], *tests]) if feeds else []
        size = model.stat().st_size
        count = quantize(model, feeds)
        after = outputs_on(model, [feeds[0], *tests])
        sizes = f"{size / 2**20:.1f} -> {model.stat().st_size / 2**20:.1f} MiB"
        echo(f"INT8: {count} products, calibrated on {len(feeds)} image{'s' * (len(feeds) != 1)}; {sizes}")
        for name, array in before[0].items():
            one = difference(name, array, after[0][name])
            same = one.shape == one.other_shape
            by = f"differs by {one.relative:.2g} of its largest number" if same else f"now {shape_text(one.other_shape)}"
            echo(f"  {name} {shape_text(one.shape)} on the first image: {by}")
        if labelled:
            float_, int8 = (mean_average_precision(found[1:], labelled) for found in (before, after))
            images = f"{len(labelled)} labelled image{'s' * (len(labelled) != 1)}"
            echo(f"  mAP on {images}: {float_:.4f} before, {int8:.4f} after")


def _feeds(net: Net, sources: Sequence[str], options: InputOptions, whole: Whole | None) -> list[Mapping[str, Any]]:
    """The model's inputs for each image. Raises Error where no image can be read."""
    feeds: list[Mapping[str, Any]] = []
    lost = []
    for picture in islice(find_sources(sources).pictures(), MOST):
        try:
            feeds.append(_feed(net, picture.pixels(), options, whole))
        except Error as error:
            lost.append(str(error))
    if not feeds:
        raise Error(f"--calibrate {', '.join(sources)}: no image can be read" + (f": {lost[0]}" if lost else ""))
    for sentence in lost:
        warn(sentence)
    return feeds


def _feed(net: Net, pixels: np.ndarray, options: InputOptions, whole: Whole | None) -> Mapping[str, Any]:
    """What the image is for the net, as by run: with --with-boxes or --with-image as by detect."""
    if whole:
        return whole.inputs(net, pixels)
    name = image_input(net, "--calibrate")
    filled = put_image(net, name, pixels, options.settings, options.order)
    net.blobs[name].data[...] *= net.dtype.type(options.factor)
    return {name: net.blobs[name].data.copy() for name in filled}
