"""export: a net as an ONNX model, whole with --with-image and --with-boxes, in 8 bits with --int8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
import numpy as np
from numpy.typing import NDArray

from minicaffe.data.image_bytes import read_image
from minicaffe.data.images import load_image
from minicaffe.data.roidb import load_roidb
from minicaffe.detection.families import family_of
from minicaffe.detection.family import SSD_MEANS, FindOptions, numbers_text
from minicaffe.detection.inputs import image_input, put_array, put_image
from minicaffe.detection.task import class_names, read_class_names
from minicaffe.errors import Error
from minicaffe.files import replacing_together
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, difference
from minicaffe.scaling.batch.find import find_sources

from .common import check_target, shape_text
from .convert import check_option, print_agreement
from .groups import StateOptions, ThreadOptions, classes_option, random_weights_option, seed_option
from .image_options import MEANS, InputOptions, inform_preprocessing, mean_option, preprocessing_way
from .options import FiniteRange, argument, option, with_options
from .terminal import echo, warn

if TYPE_CHECKING:
    from minicaffe.porting.onnx import Whole


MOST_IMAGES = 100


@dataclass(frozen=True, kw_only=True)
class Int8Options:
    """--int8 and the options that go with it."""

    heading: ClassVar[str] = "8 bits"
    int8: bool = option("--int8", "Compute convolutions and inner products in 8 bits (onnxruntime's static quantization).")
    calibrate: tuple[str, ...] = option(
        "--calibrate", f"With --int8: up to {MOST_IMAGES} images for the calibration; may be repeated.", metavar="SOURCE"
    )
    roidb: str | None = option(
        "--roidb",
        "With --int8 --with-boxes: labelled images, to measure the mAP before and after.",
        metavar="FILE.json|VOC-FOLDER",
    )

    def check_int8(self, whole: Whole | None) -> None:
        """Raise an error for options that do not go together."""
        if not self.int8 and (self.calibrate or self.roidb):
            raise click.UsageError("--calibrate and --roidb are for --int8")
        if self.int8 and not self.calibrate:
            raise click.UsageError("--int8 needs images for the calibration: give --calibrate")
        if self.roidb and not (whole and whole.boxes):
            raise click.UsageError("--roidb compares boxes: give --with-boxes too")

    def to_int8(self, net: Net, model: Path, options: InputOptions, whole: Whole | None) -> None:
        """Quantize the model, and print its size, differences and mAP before and after. Raises Error."""
        from minicaffe.porting.onnx.session import Labelled, mean_average_precision, outputs_on, quantize

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
    """Return the model's inputs for each image. Raises Error if no image can be read."""
    feeds: list[Mapping[str, Any]] = []
    lost = []
    for picture in islice(find_sources(sources).pictures(), MOST_IMAGES):
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
    """Return the inputs that hold the image, filled as run does, or with --with-boxes or --with-image as detect does."""
    if whole:
        return whole.inputs(net, pixels)
    name = image_input(net, "--calibrate")
    filled = put_image(net, name, pixels, options.settings, options.order)
    net.blobs[name].data[...] *= net.dtype.type(options.factor)
    return {name: net.blobs[name].data.copy() for name in filled}


THRESHOLD, MOST_BOXES = 0.5, 100


@dataclass(frozen=True, kw_only=True)
class WholeOptions:
    """The options of a whole detector: its preparation of photos and its boxes."""

    heading: ClassVar[str] = "A whole detector"
    with_image: bool = option(
        "--with-image", "The model takes a photo of any size, uint8 H x W x 3 (blue, green, red), and prepares it."
    )
    with_boxes: bool = option(
        "--with-boxes", "The model returns boxes, scores and classes as detect does, not the net's outputs."
    )
    threshold: float | None = option(
        "--threshold", f"With --with-boxes: lowest score of a box.  [default: {THRESHOLD}]", type=FiniteRange(0, 1)
    )
    max_detections: int | None = option(
        "--max-detections", f"With --with-boxes: maximum of boxes.  [default: {MOST_BOXES}]", type=click.IntRange(1)
    )
    classes: str | None = classes_option()

    def whole(self, options: InputOptions) -> Whole | None:
        """Return the parts of the model before and after the net, or None. Raises Error for options that need them."""
        from minicaffe.porting.onnx import Whole

        if not self.with_boxes:
            for name, value in {"--threshold": self.threshold, "--max-detections": self.max_detections}.items():
                if value is not None:
                    raise Error(f"{name} does nothing without --with-boxes")
        if not (self.with_boxes or self.with_image):
            return None
        if options.rgb:
            raise Error("--rgb: with --with-image or --with-boxes the model takes blue, green, red")
        return Whole(
            photo=self.with_image,
            boxes=self.with_boxes,
            threshold=THRESHOLD if self.threshold is None else self.threshold,
            max_detections=self.max_detections or MOST_BOXES,
            means=options.means or SSD_MEANS,
            scale_factor=options.factor,
        )


@dataclass(frozen=True, kw_only=True)
class Options(Int8Options, WholeOptions, InputOptions, StateOptions, ThreadOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    out: str = option("-o --out", "Model to write.", required=True, metavar="FILE.onnx")
    opset: int | None = option("--opset", "Version of ONNX's operators.  [default: 18, the oldest]")
    until: str | None = option(
        "--until", "Export only this layer and the layers that it needs; its tops are the outputs.", metavar="LAYER"
    )
    fold: bool = option("--fold", "Fold BatchNorm, Scale and Bias into the convolutions before them.")
    check: bool = check_option()
    seed: int = seed_option()
    random_weights: bool = random_weights_option()
    mean: tuple[float, float, float] | None = mean_option(f"{MEANS}; --with-image of an SSD: {numbers_text(SSD_MEANS)}")


@with_options(Options)
def export_command(options: Options) -> None:
    """Convert the prototxt NET with WEIGHTS (of any format) to an ONNX model of standard operators.

    The batch, the image's height and width and the number of rois are dynamic axes of the model if the net allows it.
    --input is for --check. With --with-image and --with-boxes the model is a complete detector: it takes a photo and returns
    boxes.

    Example:  minicaffe export test.prototxt net.caffemodel -o model.onnx --check --input data=photo.jpg
    """
    from minicaffe.porting.onnx import DEFAULT_OPSET, compare_with_net, export_onnx

    out, until = options.out, options.until
    check_target("--out", out, [options.net, *options.weights, *options.read_files(), options.classes], writes=[".onnx"])
    if options.inputs and not options.check:
        raise click.UsageError("--input is for --check")
    whole = options.whole(options)
    options.check_int8(whole)
    net = options.load(options.net, options.weights)
    classes = class_names(net, read_class_names(net, options.classes)) if options.classes else None
    options.reshape(net)
    arrays = _arrays(net, options) if options.check and not whole else {}
    opset = DEFAULT_OPSET if options.opset is None else options.opset
    with replacing_together(out) as draft:  # the model and its file of weights appear together, or neither
        data = export_onnx(net, draft, opset=opset, until=until, fold=options.fold, whole=whole, classes=classes)
        if whole and whole.photo:
            prepared = FindOptions(settings=options.settings, means=whole.means, scale_factor=whole.scale_factor)
            inform_preprocessing(family_of(net).preparation(net, prepared), preprocessing_way(net, options.cfg))
        size = draft.stat().st_size / 2**20
        _print_axes(draft)
        if options.check and whole:
            print_agreement("detect and model compared", whole_check(net, draft, options, whole), ("detect", "the model"))
        elif options.check:
            for name, array in arrays.items():
                put_array(net, name, array)
            print_agreement("net and model compared", compare_with_net(net, draft, until=until), ("the net", "the model"))
        if options.int8:
            options.to_int8(net, draft, options, whole)
            size = draft.stat().st_size / 2**20
    beside = f", weights in {Path(out).with_name(data)}" if data else ""
    echo(f"written: {out} (opset {opset}, {size:.1f} MiB{beside})")


def _arrays(net: Net, options: Options) -> dict[str, NDArray[Any]]:
    """Return the net's inputs for the check. The net keeps the shapes with which it is exported."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    for note in options.fill(net, options.seed, options.until):
        warn(note)
    arrays = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    for name, shape in shapes.items():
        net.blobs[name].reshape(shape)
    return arrays


def _print_axes(model: Path) -> None:
    import onnx

    graph = onnx.load(model, "protobuf", load_external_data=False).graph
    for kind, tensors in (("input", graph.input), ("output", graph.output)):
        for tensor in tensors:
            dims = [d.dim_param or str(d.dim_value) for d in tensor.type.tensor_type.shape.dim]
            echo(f"{kind} {tensor.name} {' x '.join(dims) or 'scalar'}")


def whole_check(net: Net, model: Path, options: InputOptions, whole: Whole) -> list[Difference]:
    """Return the differences from detect on the photo of --input, or on noise without one. Raises Error."""
    from minicaffe.porting.onnx import compare_with_detect

    if not whole.boxes:
        raise Error("--check with --with-image compares boxes: give --with-boxes too")
    files = list(dict(options.inputs).values())
    if len(files) > 1:
        raise Error("--input: give one photo with --with-image or --with-boxes")
    noise = np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)
    return compare_with_detect(net, model, read_image(files[0]) if files else noise, whole)
