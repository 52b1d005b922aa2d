"""PASCAL VOC's annotations as a roidb: an .xml an image.

    FOLDER/JPEGImages/a.jpg  FOLDER/Annotations/a.xml  FOLDER/ImageSets/Main/trainval.txt     VOC's: the images of a list
    FOLDER/JPEGImages/a.jpg  FOLDER/Annotations/a.xml                                         all annotated images
    FOLDER/a.jpg  FOLDER/a.xml                                                                the same, as labelImg writes them

Source: PASCAL VOC's devkit; py-faster-rcnn's datasets/pascal_voc.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from minicaffe.data.roidb_entry import (
    BACKGROUND,
    SUFFIXES,
    Classes,
    Entry,
    Inside,
    Roidb,
    as_boxes,
    as_classes,
    whole_size,
)
from minicaffe.errors import DataError, unread
from minicaffe.files import read_bytes, read_text

ANNOTATIONS, IMAGES, LISTS = "Annotations", "JPEGImages", "ImageSets/Main"
VOC_CLASSES = (
    BACKGROUND, "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def read_voc(folder: Path, splits: Sequence[str], names: list[str]) -> tuple[Roidb, list[str]]:
    """Return the images of the first of the splits that is there, or without splits all annotated ones, and the class names.

    Boxes become 0-based. Difficult objects become ignored boxes. Raises DataError.
    """
    inside, known = Inside(folder), Classes([name.lower() for name in names])
    images = _listed(folder, splits) if splits else [(None, path.stem) for path in annotation_files(folder)]
    if not images:
        raise _another_kind(folder)
    below = f"{ANNOTATIONS}/" if (folder / ANNOTATIONS).is_dir() else ""
    return [_image(inside, f"{below}{stem}.xml", stem, place, known) for place, stem in images], names


def has_lists(folder: Path) -> bool:
    return (folder / LISTS).is_dir()


def annotation_files(folder: Path) -> list[Path]:
    """Return the .xml files of a folder's Annotations or, where there are none, of the folder itself."""
    whole = folder / ANNOTATIONS
    return sorted((whole if whole.is_dir() else folder).glob("*.xml"))


def _listed(folder: Path, splits: Sequence[str]) -> list[tuple[str, str]]:
    """Return the places and image names in the list of the first split that is there. Raises DataError."""
    if not (folder / ANNOTATIONS).is_dir() and not annotation_files(folder):
        raise _another_kind(folder)
    listings = [folder / LISTS / f"{split}.txt" for split in splits]
    listing = next((path for path in listings if path.is_file()), listings[0])
    try:
        lines = read_text(listing, "lists").split("\n")
        return [(f"{listing}:{number}", words[0]) for number, line in enumerate(lines, 1) if (words := line.split())]
    except FileNotFoundError as error:
        splits = ", ".join(sorted(path.stem for path in listing.parent.glob("*.txt"))[:8]) or "none"
        raise DataError(f"{listing}: no such list of images; the folder has these splits: {splits}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{listing}: cannot read the list of images: {getattr(error, 'strerror', None) or error}") from error


def _another_kind(folder: Path) -> DataError:
    """Return the error for a folder without annotations."""
    inside = next((path for path in sorted(folder.iterdir()) if path.is_dir() and annotation_files(path)), None)
    names = sorted(path.name for path in folder.iterdir())
    found = f"it holds {', '.join(names[:5])}{', ...' * (len(names) > 5)}" if names else "it is empty"
    advice = f"give {inside}" if inside else f"{found}. For annotations in a JSON file, give the file"
    return DataError(f"{folder}: not a PASCAL VOC folder: it has no .xml, nor {ANNOTATIONS} with any; {advice}")


def _image(inside: Inside, name: str, stem: str, place: str | None, known: Classes) -> Entry:
    """Return the image of an annotation. place: of its name in a list."""
    path = inside.granted(name, place)
    try:
        root = ElementTree.fromstring(read_bytes(path))
        objects = list(root.iter("object"))
        difficult = np.array([int(o.findtext("difficult", "0") or 0) != 0 for o in objects], bool)
        # VOC counts pixels from 1; as_boxes reports NaN.
        corners = [[float(o.findtext(f"bndbox/{c}", "nan")) - 1 for c in ("xmin", "ymin", "xmax", "ymax")] for o in objects]
        labels = [known.number((o.findtext("name") or "").strip().lower(), path) for o in objects]
        size = [whole_size(float(root.findtext(f"size/{side}") or 0), f"{path}: {side}") for side in ("width", "height")]
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise DataError(unread(path, "cannot read the annotation", error)) from error
    image = inside.granted(_picture(inside.folder, stem), place)
    boxes, classes = as_boxes(corners, path), as_classes(labels)
    entry = Entry(image=image, boxes=boxes[~difficult], gt_classes=classes[~difficult])
    entry["ignored_boxes"], entry["ignored_classes"] = boxes[difficult], classes[difficult]
    if min(size) > 0:
        entry["width"], entry["height"] = size
    return entry


def _picture(folder: Path, stem: str) -> str:
    """Return the name of an image: STEM.jpg, or if it is missing, STEM with another image suffix such as .png or .JPEG.

    It is in JPEGImages, or, in a folder without that, in the folder itself.
    """
    below = f"{IMAGES}/" if (folder / IMAGES).is_dir() or has_lists(folder) else ""
    names = [f"{below}{stem}{suffix}" for suffix in (".jpg", *SUFFIXES, *map(str.upper, SUFFIXES))]
    return next((name for name in names if (folder / name).is_file()), names[0])
