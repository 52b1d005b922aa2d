"""The options that give a net's RoIData layer its images and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minicaffe.data.image_check import readable
from minicaffe.data.roidb import add_flipped, add_proposals, entry_pixels, load_roidb
from minicaffe.data.roidb_entry import Roidb
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.class_names import read_names
from minicaffe.detection.inputs import read_proposals
from minicaffe.errors import Error, UnknownClassError
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.net import Net

from .common import warn
from .groups import classes_option
from .options import option
from .terminal import echo


def read_annotations(
    source: str, split: str | Sequence[str], images: str | None, classes: str | None
) -> tuple[Roidb, list[str]]:
    """load_roidb, with the names in the file --classes; without it, the order that is taken is printed. Raises Error, also
    where the first image is not there."""
    try:
        roidb, names = load_roidb(source, split=split, images=images, classes=read_names(classes) if classes else None)
    except UnknownClassError as error:
        raise Error(f"{error}: --classes FILE gives other names, one per line" if not classes else str(error)) from error
    if roidb and not Path(first := str(roidb[0]["image"])).exists():
        advice = ": --images gives the folder of the images" * (Path(source).is_file() and not images)
        raise Error(f"{source}: its first image, {first}, is not there{advice}")
    if names and not classes:
        echo(f"classes in the order of {source}: {', '.join(names[1:])} (--classes gives the net's)", err=True)
    return readable(roidb, entry_pixels, lambda entry: str(entry["image"]), source), names


@dataclass(frozen=True, kw_only=True)
class RoidbOptions:
    """--roidb, --split, --images, --classes and --proposals."""

    roidb: str | None = option(
        "--roidb", "Images and boxes, for nets that begin with RoIData: JSON, CSV, a VOC or YOLO folder.", metavar="FILE|FOLDER"
    )
    split: str | None = option(
        "--split", "List of a VOC, folder of a YOLO dataset.  [default: trainval, or train]", metavar="NAME"
    )
    images: str | None = option("--images", "Images of a COCO or CSV file.  [default: the file's folder]", metavar="DIR")
    classes: str | None = classes_option()
    proposals: str | None = option("--proposals", "IMAGE-NAME.npy files: boxes (R, 4), for nets without an RPN.", metavar="DIR")

    def set_roidb(self, net: Net, settings: DetectionSettings, test_nets: Sequence[Net] = ()) -> Sequence[str]:
        """Hand the images and boxes of --roidb to the RoIData layers of the net and of a solver's test nets; the names of the
        classes. Raises Error."""
        readers = [layer for one in (net, *test_nets) for layer in one.layers if isinstance(layer, RoIData)]
        source, images = self.roidb, self.images
        if not readers:
            if source:
                raise Error(f"--roidb {source}: no layer of the net reads a roidb")
            return []
        reader = readers[0]
        if not source:
            raise Error(f'layer "{reader.name}" reads a roidb: give --roidb, a JSON or CSV file, or a folder of VOC or YOLO')
        if images and not Path(images).is_dir():
            raise Error(f"--images {images}: no such folder")
        entries, classes = read_annotations(source, self.split or ("trainval", "train"), images, self.classes)
        if classes and len(classes) != reader.num_classes:
            wanted = f'layer "{reader.name}" has num_classes {reader.num_classes}'
            warn(f"{source} has {len(classes)} classes with the background, but {wanted}")
        if self.proposals:
            boxes = [read_proposals(self.proposals, Path(str(entry["image"]))) for entry in entries]
            entries = add_proposals(entries, [array for array in boxes if array is not None])
        if settings.train.use_flipped:
            entries = add_flipped(entries)
        for reader in readers:
            reader.set_roidb(entries)
        mirrored = ", half of them mirror images" * settings.train.use_flipped
        echo(f"{source}: {len(entries)} images{mirrored}, {len(classes)} classes")
        return classes
