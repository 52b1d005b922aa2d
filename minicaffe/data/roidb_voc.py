"""PASCAL VOC's annotations as a roidb: an .xml an image.

    FOLDER/JPEGImages/a.jpg  FOLDER/Annotations/a.xml  FOLDER/ImageSets/Main/trainval.txt     VOC's: the images of a list
    FOLDER/JPEGImages/a.jpg  FOLDER/Annotations/a.xml                                         all annotated images
    FOLDER/a.jpg  FOLDER/a.xml                                                                the same, as labelImg writes them
    FOLDER/../images/a.jpg  FOLDER/a.xml                                                      the same, .xml in their own folder

Without a list, images are found beside the .xml, in the folder above, or in JPEGImages/ or images/ of these two.

Source: PASCAL VOC's devkit; py-faster-rcnn's datasets/pascal_voc.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
    images_in,
    whole_size,
)
from minicaffe.errors import DataError, UnknownSplitError, first_of, in_brackets, unread
from minicaffe.files import read_bytes, read_text

ANNOTATIONS, IMAGES, LISTS = "Annotations", "JPEGImages", "ImageSets/Main"
IMAGE_FOLDERS = ("", f"{IMAGES}/", "images/")
VOC_CLASSES = (
    BACKGROUND, "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def read_voc(folder: Path, splits: Sequence[str], names: list[str], images: Path | None = None) -> tuple[Roidb, list[str]]:
    """Return the images of the first of the splits that is there, or without splits all annotated ones, and the class names.

    images: their folder; None looks for it. Boxes become 0-based. Difficult objects become ignored boxes. Raises DataError.
    """
    inside, known = Inside(folder), Classes([name.lower() for name in names])
    listed = _listed(folder, splits) if splits else [(None, path.stem) for path in annotation_files(folder)]
    if not listed:
        raise _another_kind(folder)
    if splits:
        base, pictures = (images, "") if images else (folder, f"{IMAGES}/")
    else:
        base, pictures = _image_folder(folder, [stem for _, stem in listed], images)
    below = f"{ANNOTATIONS}/" if (folder / ANNOTATIONS).is_dir() else ""
    roidb: Roidb = []
    among = Inside(base)
    for place, stem in listed:
        entry = _annotation(inside.granted(f"{below}{stem}.xml", place), known)
        entry["image"] = among.granted(_picture(base, f"{pictures}{stem}"), place)
        roidb.append(entry)
    return roidb, names


def has_lists(folder: Path) -> bool:
    return (folder / LISTS).is_dir()


def annotation_files(folder: Path) -> list[Path]:
    """Return the .xml files of a folder's Annotations or, where there are none, of the folder itself."""
    return sorted(_annotation_folder(folder).glob("*.xml"))


def annotated_folder(folder: Path) -> Path | None:
    """Return the first folder in this one that has annotations."""
    return next((path for path in sorted(folder.iterdir()) if path.is_dir() and annotation_files(path)), None)


def unannotated(roidb: Roidb) -> list[Path]:
    """Return the images that have no entry, in the folder of a roidb's images."""
    images = [Path(str(entry["image"])) for entry in roidb]
    known = {path.stem for path in images}
    return [path for path in images_in(images[0].parent) if path.stem not in known]


def _annotation_folder(folder: Path) -> Path:
    whole = folder / ANNOTATIONS
    return whole if whole.is_dir() else folder


def _image_folder(folder: Path, stems: Sequence[str], images: Path | None) -> tuple[Path, str]:
    """Return the folder that holds the most images of these names, in two parts. Raises DataError if there is none.

    The first part is the folder that links must stay in.
    """
    own = _annotation_folder(folder)
    above = own / ".." if own.name in ("", "..") else own.parent
    places = [(base, below) for base in (own, above) for below in IMAGE_FOLDERS] if images is None else [(images, "")]
    wanted = set(stems)
    counts = [_count(base / below, wanted) for base, below in places]
    if any(counts):
        return places[counts.index(max(counts))]
    if images:
        raise DataError(f"{images}: has no image for the .xml files of {own}, such as {stems[0]}.jpg")
    raise DataError(
        f"{own}: no image found for its .xml files, such as {stems[0]}.jpg; images must be in {own} or {above}, or in {IMAGES}/"
        f" or images/ of these{in_brackets('--images gives another folder')}"
    )


def _count(folder: Path, stems: set[str]) -> int:
    """Return how many of the names have an image in the folder; 0 if the folder is missing or cannot be read."""
    with suppress(OSError):
        return len(stems & {path.stem for path in images_in(folder)})
    return 0


def _listed(folder: Path, splits: Sequence[str]) -> list[tuple[str, str]]:
    """Return the places and image names in the list of the first split that is there. Raises DataError."""
    if not (folder / ANNOTATIONS).is_dir() and not annotation_files(folder):
        raise _another_kind(folder)
    listings = [folder / LISTS / f"{split}.txt" for split in splits]
    listing = next((path for path in listings if path.is_file()), listings[0])
    try:
        lines = read_text(listing, "lists").split("\n")
    except FileNotFoundError as error:
        others = sorted(path.stem for path in listing.parent.glob("*.txt"))
        kind = UnknownSplitError if others else DataError
        names = first_of(others) or "none"
        raise kind(f"{listing}: no such list of images; the folder has these splits: {names}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{listing}: cannot read the list of images: {getattr(error, 'strerror', None) or error}") from error
    found = [(f"{listing}:{number}", words[0]) for number, line in enumerate(lines, 1) if (words := line.split())]
    if not found:
        raise DataError(f"{listing}: the list of images is empty: write an image's name in each line, without .jpg")
    return found


def _another_kind(folder: Path) -> DataError:
    """Return the error for a folder without annotations."""
    inside = annotated_folder(folder)
    names = sorted(path.name for path in folder.iterdir())
    found = f"it holds {', '.join(names[:5])}{', ...' * (len(names) > 5)}" if names else "it is empty"
    advice = f"give {inside}" if inside else f"{found}. For annotations in a JSON file, give the file"
    return DataError(f"{folder}: not a PASCAL VOC folder: it has no .xml, nor {ANNOTATIONS} with any; {advice}")


def _annotation(path: str, known: Classes) -> Entry:
    """Return the entry of an annotation, without the image."""
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
    boxes, classes = as_boxes(corners, path), as_classes(labels)
    entry = Entry(boxes=boxes[~difficult], gt_classes=classes[~difficult])
    entry["ignored_boxes"], entry["ignored_classes"] = boxes[difficult], classes[difficult]
    if min(size) > 0:
        entry["width"], entry["height"] = size
    return entry


def _picture(folder: Path, stem: str) -> str:
    """Return the name of an image: STEM.jpg, or if it is missing, STEM with another image suffix such as .png or .JPEG."""
    names = [f"{stem}{suffix}" for suffix in (".jpg", *SUFFIXES, *map(str.upper, SUFFIXES))]
    return next((name for name in names if (folder / name).is_file()), names[0])
