"""The options for inputs made of images: settings, means, order of the channels and axes, files, shapes, annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click
import numpy as np

from minicaffe.data.image_check import readable
from minicaffe.data.roidb import add_flipped, add_proposals, entry_pixels, load_roidb
from minicaffe.data.roidb_entry import LARGEST, Roidb
from minicaffe.data.roidb_voc import LISTS, annotation_files, has_lists, unannotated
from minicaffe.data.settings import DetectionSettings, read_settings, with_anchors
from minicaffe.detection.class_names import read_names
from minicaffe.detection.data_inputs import image_means
from minicaffe.detection.families import by_family, family_of
from minicaffe.detection.family import numbers_text
from minicaffe.detection.inputs import Order, fill_inputs, image_input, read_proposals
from minicaffe.errors import Error, UnknownClassError, UnknownSplitError, in_brackets
from minicaffe.formats.arrays import read_npy
from minicaffe.formats.weights import read_binaryproto
from minicaffe.layers.proposal.anchor_defaults import read_anchors
from minicaffe.layers.proposal.param_str import StandIn
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.layers.ssd.multi_box_loss import MultiBoxLoss
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2

from .groups import classes_option
from .options import FiniteRange, option
from .terminal import echo, inform, warn


def mean_of(text: str) -> tuple[float, float, float]:
    """Return the three numbers of --mean. Raises Error."""
    try:
        blue, green, red = map(float, text.split(","))
        if np.isfinite([blue, green, red]).all():
            return blue, green, red
    except ValueError:
        pass
    raise Error(f"--mean {text}: give 3 numbers with commas between them")


def file_means(path: str) -> tuple[float, float, float]:
    """Return the means of blue, green and red from a file: three numbers, or the means of an image (3, H, W).

    Raises Error.
    """
    array = np.asarray(read_npy(path) if path.endswith(".npy") else read_binaryproto(Path(path)), np.float64)
    array = array.reshape(array.shape[1:]) if array.ndim == 4 and len(array) == 1 else array
    if array.shape[:1] not in ((3,), (1,)) or array.ndim not in (1, 3) or not np.isfinite(array).all() or not array.size:
        raise Error(f"--mean-file {path}: needs 1 or 3 finite numbers, or images of as many channels, got shape {array.shape}")
    blue, green, red = np.broadcast_to(array.reshape(len(array), -1).mean(axis=1), 3).tolist()
    return blue, green, red


@dataclass(frozen=True)
class AnchorFile:
    """A model's generate_anchors.py, and its numbers by name."""

    path: str
    numbers: Mapping[str, Sequence[float]]


def anchors_in(path: str) -> AnchorFile:
    """Return the anchors of a generate_anchors.py. Raises Error."""
    return AnchorFile(path, read_anchors(path))


def anchors_option(others: str = "", *, metavar: str = "FILE.py", type: Callable[[str], Any] = anchors_in) -> Any:
    """Return --anchors. others: what else it takes."""
    help = "The model's own generate_anchors.py, for Python layers whose param_str has no anchors. It is read, not run."
    return option("--anchors", help + others, metavar=metavar, type=type)


@dataclass(frozen=True, kw_only=True)
class SettingsOptions:
    """The options --cfg and --anchors."""

    heading: ClassVar[str] = "Images and settings"
    cfg: str | None = option("--cfg", "Detection settings in py-faster-rcnn's format.", metavar="FILE.yml")
    anchors: AnchorFile | tuple[float, ...] | None = anchors_option()

    @cached_property
    def settings(self) -> DetectionSettings:
        """The settings of the files, or the defaults, as changed by other options. Raises Error."""
        settings = read_settings(self.cfg) if self.cfg else DetectionSettings()
        return with_anchors(settings, self.anchors.numbers) if isinstance(self.anchors, AnchorFile) else settings

    def check_net(self, net: Net) -> None:
        """Raise Error for the --anchors of a net that does not read them."""
        if isinstance(self.anchors, AnchorFile) and not any(
            isinstance(layer, StandIn) and layer.takes_anchors for layer in net.layers
        ):
            wrong = "no Python layer of the net makes anchors of numbers"
            raise Error(f"--anchors {self.anchors.path}: {wrong}; leave the option out")


MEANS = ",".join(map(str, DetectionSettings().pixel_means))
FAMILY_MEANS = by_family(MEANS, lambda family: numbers_text(family.means))
FAMILY_FACTORS = by_family("1", lambda family: f"1/{1 / family.scale_factor:g}" if family.scale_factor < 1 else "1")
"""The defaults of --mean and --scale-factor for commands that prepare an image as detect does."""


def mean_option(default: str = MEANS) -> Any:
    return option("--mean", f"Mean subtracted from images.  [default: {default}]", metavar="B,G,R", type=mean_of)


def scale_factor_option(default: str = "1", nets: str = "") -> Any:
    """Return --scale-factor. nets: the only ones that take it."""
    help = f"Factor applied after the mean is subtracted{nets and f'; only for {nets}'}.  [default: {default}]"
    return option("--scale-factor", help, type=FiniteRange(0, min_open=True))


@dataclass(frozen=True, kw_only=True)
class ImageOptions(SettingsOptions):
    """The preprocessing of images: --cfg, --mean, --mean-file, --rgb and --scale-factor."""

    heading: ClassVar[str] = "Images and settings"
    mean: tuple[float, float, float] | None = mean_option()
    mean_file: str | None = option(
        "--mean-file",
        "A mean image or three numbers, in place of --mean; each channel's mean is used.",
        metavar="FILE.binaryproto|FILE.npy",
    )
    rgb: bool = option("--rgb", "The net takes red, green, blue. --mean stays blue, green, red.")
    scale_factor: float | None = scale_factor_option()

    @cached_property
    def settings(self) -> DetectionSettings:
        settings = super().settings
        return dataclasses.replace(settings, pixel_means=self.means) if self.means else settings

    @cached_property
    def means(self) -> tuple[float, float, float] | None:
        """The means of --mean or --mean-file, or None. Raises Error."""
        if self.mean_file is None:
            return self.mean
        if self.mean:
            raise click.UsageError("--mean and --mean-file: give one of them")
        return file_means(self.mean_file)

    @property
    def factor(self) -> float:
        return self.scale_factor or 1.0

    @property
    def preparation(self) -> list[str]:
        """The means and the factor, in words."""
        return [f"means {numbers_text(self.settings.pixel_means)}", f"factor {self.factor:g}"]


def inform_preprocessing(preparation: Sequence[str], way: str = "--mean and --scale-factor change them") -> None:
    """Print how images are prepared. way: the options that change it."""
    inform(f"Preprocessing: {', '.join(preparation)} ({way})")


def preprocessing_way(net: Net, cfg: str | None) -> str:
    """Return which options change how a detector's images are prepared."""
    if rules := family_of(net).fixed_size(net):
        return f"--mean{', --min-face' * ('TEST.MIN_FACE' in rules.settings)} and --scale-factor change them"
    return f"from {cfg}" if cfg else "--cfg FILE.yml changes them: give the settings that the net was trained with"


Of = TypeVar("Of", bound=ImageOptions)


def of_data(options: Of, param: caffe_pb2.LayerParameter) -> Of:
    """Return the options; a mean or factor that is not given is the data layer's. Raises Error."""
    mean = options.mean if options.mean or options.mean_file or options.cfg else image_means(param)
    is_scaled = options.scale_factor is None and param.transform_param.scale != 1
    return dataclasses.replace(
        options, mean=mean, scale_factor=param.transform_param.scale if is_scaled else options.scale_factor
    )


def _named_file(text: str) -> tuple[str, str]:
    """Return the name and the file of BLOB=FILE. Raises Error."""
    name, equals, file = text.partition("=")
    if not equals:
        raise Error(f"--input {text}: write it as BLOB=FILE")
    return name, file


def _named_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the shape of BLOB=N,C,H,W. Raises Error."""
    name, _, dims = text.partition("=")
    try:
        return name, tuple(int(d) for d in dims.replace("x", ",").split(","))
    except ValueError:
        raise Error(f"--shape {text}: write it as BLOB=N,C,H,W") from None


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """The option --shape."""

    heading: ClassVar[str] = "Images and settings"
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = option(
        "--shape", "Shape of an input; may be repeated.", metavar="BLOB=N,C,H,W", type=_named_shape
    )

    def reshape(self, net: Net) -> None:
        """Give a net's inputs these shapes. Raises Error for a blob that is not an input."""
        for name, dims in self.shapes:
            if name not in net.inputs:
                shape = ",".join(map(str, dims))
                raise Error(f"--shape {name}={shape}: the net's inputs are {', '.join(net.inputs) or 'none'}")
            net.blobs[name].reshape(dims)


@dataclass(frozen=True, kw_only=True)
class OrderOptions(ImageOptions):
    """--axes, and the options of ImageOptions."""

    heading: ClassVar[str] = "Images and settings"
    axes: str = option(
        "--axes",
        "Order of an image's last two axes; wh: columns first, as in MTCNN.",
        type=click.Choice(["hw", "wh"]),
        default="hw",
    )

    @property
    def order(self) -> Order:
        """The order of an image's channels and axes."""
        return Order(rgb=self.rgb, columns_first=self.axes == "wh")


@dataclass(frozen=True, kw_only=True)
class InputOptions(ShapeOptions, OrderOptions):
    """--input, --shape, --axes, --cfg, --mean, --mean-file, --rgb and --scale-factor.

    image: None unless a command has an option --image.
    """

    heading: ClassVar[str] = "Images and settings"
    inputs: tuple[tuple[str, str], ...] = option(
        "--input", ".npy or image file for an input; may be repeated.", metavar="BLOB=FILE", type=_named_file
    )
    image: str | None = None

    def files(self, net: Net) -> dict[str, str]:
        """Return the file of each input, with --image among them. Raises Error for an image that no input can hold."""
        if not self.image:
            return dict(self.inputs)
        return {image_input(net, f"--image {self.image}"): self.image, **dict(self.inputs)}

    def read_files(self) -> list[str | None]:
        """Return the files that these options name."""
        return [self.cfg, self.mean_file, self.image, *dict(self.inputs).values()]

    def fill(self, net: Net, seed: int, until: str | None = None) -> list[str]:
        """Reshape and fill the net's inputs; return a sentence for each input that was generated. until: see fill_inputs."""
        self.reshape(net)
        files = self.files(net)
        settings, factor, order = self.settings, self.factor, self.order
        notes = fill_inputs(net, files, seed=seed, settings=settings, factor=factor, until=until, order=order)
        if any(Path(file).suffix.lower() != ".npy" for file in files.values()):
            inform_preprocessing(self.preparation)
        return notes


def images_option() -> Any:
    text = (
        "Folder of the images.  [default: the file's folder; for .xml files: their folder or its parent, or JPEGImages/ or "
        "images/ in either]"
    )
    return option("--images", text, metavar="DIR")


def split_option(default: str) -> Any:
    text = f"Image list of a VOC dataset, or folder of a YOLO dataset.  [default: {default}]"
    return option("--split", text, metavar="NAME")


def read_annotations(
    source: str,
    split: str | Sequence[str],
    images: str | None,
    classes: str | Sequence[str] | None,
    *,
    skip: bool = False,
    prefix: str = "--",
) -> tuple[Roidb, list[str]]:
    """Return load_roidb's result, with the class names, or those in a file; without them, print the order of the classes.

    skip: accept missing images if others exist. prefix: of the options for the split and the images. Raises Error, also for
    missing images.
    """
    try:
        given = read_names(classes) if isinstance(classes, str) else classes
        roidb, names = load_roidb(source, split=split, images=images, classes=given)
    except UnknownClassError as error:
        raise Error(f"{error}: give other names with --classes FILE, one per line" if not classes else str(error)) from error
    except UnknownSplitError as error:
        raise Error(f"{error} ({prefix}split NAME selects one)") from error
    path = Path(source)
    lost = [image for entry in roidb if not (image := Path(str(entry["image"]))).exists()]
    if lost and not (skip and len(lost) < len(roidb)):
        skipping = ["--skip-unreadable leaves them out"] * (len(lost) < len(roidb))
        advice = in_brackets(f"{prefix}images gives another folder", *skipping)
        raise Error(f"{source}: images missing: {len(lost)} of {len(roidb)}; {lost[0].parent} has no {lost[0].name}{advice}")
    if path.is_dir() and annotation_files(path) and not has_lists(path):
        echo(
            f"{source}: has no list of images ({LISTS}): using all {len(roidb)} annotated image{'s' * (len(roidb) != 1)}",
            err=True,
        )
        if others := unannotated(roidb):
            count = f"{len(others)} image{'s' * (len(others) != 1)}"
            inform(f"{others[0].parent}: left out {count} without an .xml, the first {others[0].name}")
    if names and not classes:
        inform(f"classes in the order of {source}: {', '.join(names[1:])} (--classes gives the net's)")
    return readable(roidb, entry_pixels, lambda entry: str(entry["image"]), source), names


@dataclass(frozen=True, kw_only=True)
class RoidbOptions:
    """--roidb, --split, --images, --classes and --proposals.

    skip_unreadable: False unless a command has the option --skip-unreadable.
    """

    heading: ClassVar[str] = "Data"
    roidb: str | None = option(
        "--roidb",
        "Images and boxes, for nets that begin with RoIData or AnnotatedData: JSON, CSV, a VOC or YOLO folder, or labelImg's"
        " folder of .xml.",
        metavar="FILE|FOLDER",
    )
    split: str | None = split_option("trainval, or train")
    images: str | None = images_option()
    classes: str | None = classes_option()
    proposals: str | None = option(
        "--proposals", "Folder of IMAGE-NAME.npy files with boxes (R, 4), for nets without an RPN.", metavar="DIR"
    )
    skip_unreadable: bool = False

    @property
    def class_file(self) -> str | None:
        """The file of --classes."""
        return self.classes

    def with_proposals(self, entries: Roidb) -> Roidb:
        """Return the images with the boxes of --proposals, if given. Raises Error."""
        if not self.proposals:
            return entries
        boxes = [read_proposals(self.proposals, Path(str(entry["image"]))) for entry in entries]
        return add_proposals(entries, [array for array in boxes if array is not None])

    @cached_property
    def annotations(self) -> tuple[Roidb, list[str]]:
        """The images and boxes of --roidb, and the class names. Raises Error."""
        if self.images and not Path(self.images).is_dir():
            raise Error(f"--images {self.images}: no such folder")
        splits = self.split or ("trainval", "train")
        return read_annotations(self.roidb or "", splits, self.images, self.class_file, skip=self.skip_unreadable)

    def set_roidb(self, net: Net, settings: DetectionSettings, test_nets: Sequence[Net] = ()) -> Sequence[str]:
        """Give the images and boxes of --roidb to the RoIData and AnnotatedData layers; return the class names.

        AnnotatedData layers of test nets with a database keep it. Raises Error.
        """
        readers = _readers(net, test_nets, given=self.roidb is not None)
        source = self.roidb
        if not readers:
            if source:
                raise Error(f"--roidb {source}: no layer of the net reads a roidb: leave it out")
            return []
        reader = readers[0]
        if not source:
            database = reader.param.data_param.source if isinstance(reader, AnnotatedData) else ""
            why = f"reads {database}, which is missing, or a roidb" if database else "reads a roidb"
            raise Error(f'layer "{reader.name}" {why}: give --roidb, a JSON or CSV file, or a folder of VOC or YOLO')
        entries, classes = self.annotations
        holder, number = _class_count(reader, net)
        if classes and number and len(classes) != number:
            wanted = f'layer "{holder}" has num_classes {number}'
            way = f"train --classes {len(classes)}, or retarget, changes the net"
            warn(f"{source} has {len(classes)} classes with the background, but {wanted}: {way}")
        entries = self.with_proposals(entries)
        flips = settings.train.use_flipped and isinstance(reader, RoIData)  # AnnotatedData mirrors by its transform_param
        if flips:
            entries = add_flipped(entries)
        for reader in readers:
            if isinstance(reader, RoIData):
                reader.set_roidb(entries)
            else:
                reader.set_roidb(entries, classes, number or LARGEST)
        mirrored = ", half of them mirror images" * flips
        echo(f"{source}: {len(entries)} images{mirrored}, {len(classes)} classes")
        return classes


def _readers(net: Net, test_nets: Sequence[Net], given: bool) -> list[RoIData | AnnotatedData]:
    """Return the layers that read a roidb. given: whether there is one, which replaces the train net's databases."""
    found: list[RoIData | AnnotatedData] = []
    for one in (net, *test_nets):
        for layer in one.layers:
            replaces = isinstance(layer, AnnotatedData) and (layer.needs_roidb or (given and one is net))
            if isinstance(layer, RoIData) or (isinstance(layer, AnnotatedData) and replaces):
                found.append(layer)
    return found


def _class_count(reader: RoIData | AnnotatedData, net: Net) -> tuple[str, int]:
    """Return the layer that knows the number of classes, background included, and that number; 0 if no layer does."""
    if isinstance(reader, RoIData):
        return reader.name, reader.num_classes
    losses = (layer for layer in net.layers if isinstance(layer, MultiBoxLoss))
    return next(((layer.name, layer.param.multibox_loss_param.num_classes) for layer in losses), ("", 0))
