"""Class names: those of published detectors, by the number of classes, and lists in files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike

from minicaffe.data.roidb_voc import VOC_CLASSES
from minicaffe.errors import Error
from minicaffe.files import read_text

BACKGROUND = "__background__"

VOC = list(VOC_CLASSES)
"""PASCAL VOC's 20 classes after the background, in py-faster-rcnn's order."""

COCO = (
    "__background__,person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,"
    "parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,"
    "frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,"
    "wine glass,cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,"
    "couch,potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
).split(",")
"""MS COCO's 80 classes after the background, in the order of their category ids."""


def default_names(classes: int) -> list[str] | None:
    """Return VOC's names for 21 classes, background included, COCO's for 81, else None."""
    return {len(VOC): VOC, len(COCO): COCO}.get(classes)  # a guess, which --classes overrides


def read_lines(path: str | PathLike[str]) -> list[str]:
    """Return the names in a file, one on each line. Raises Error."""
    try:
        lines = read_text(path).splitlines()
    except UnicodeDecodeError as error:
        raise Error(f"{path}: not a text file; write one class name a line") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise Error(f"{path}: no class names; write one a line")
    return names


def first_names(names: Iterable[str]) -> list[str]:
    """Return the first synonym on each line, as bottom-up-attention's scripts do: "coat" of "coat,jacket"."""
    return [name.partition(",")[0].strip() or name for name in names]


def read_names(path: str | PathLike[str]) -> list[str]:
    """Return the names in a file, in a detector's order. __background__ is added first if missing. Raises Error."""
    return with_background(read_lines(path))


def with_background(names: Sequence[str]) -> list[str]:
    """Return the names with __background__ before them if they begin with another class."""
    return [*names] if names[0] in (BACKGROUND, "background") else [BACKGROUND, *names]


def read_labels(path: str | PathLike[str]) -> list[str]:
    """Return the names in a file, without the numbers of synsets such as "n01440764 tench, Tinca tinca". Raises Error."""
    lines = read_lines(path)
    synsets = all(line[:1] == "n" and line[1:9].isdigit() and line[9:10] in (" ", "\t", "") for line in lines)
    return [line[10:] or line for line in lines] if synsets else lines
