"""Detections as files that other tools read: COCO's results (.json), a table (.csv), YOLO's text files (a folder)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from minicaffe.data.drawings import class_name
from minicaffe.errors import Error
from minicaffe.files import replacing, unlinked

from .class_names import COCO
from .detect import Detections

COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
"""The ids from 1 to 90 that none of COCO's 80 categories has."""

Found = tuple[str, tuple[int, int], Detections]
"""An image's name, its height and width, and its detections."""


def write_results(path: Path, found: Sequence[Found], names: Sequence[str] | None) -> None:
    """Write the detections of all images. The suffix decides: .json and .csv are files, anything else is a folder."""
    if path.suffix.lower() == ".json":
        with replacing(path) as draft:
            draft.write_text(json.dumps(list(_coco(found, names)), indent=1) + "\n", encoding="utf-8")
    elif path.suffix.lower() == ".csv":
        with replacing(path) as draft, draft.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(_table(found, names))
    else:
        path.mkdir(parents=True, exist_ok=True)
        for target, lines in _yolo(path, found):
            with replacing(unlinked(target)) as draft:
                draft.write_text("".join(lines), encoding="utf-8")


def is_folder(path: str) -> bool:
    """Return True if write_results writes a folder. Raises Error for a name with the suffix of an unsupported kind of file."""
    suffix = Path(path).suffix.lower()
    if suffix in (".xml", ".txt", ".tsv", ".yaml", ".xlsx", ".parquet"):
        raise Error(f"{path}: results are written as .json, .csv, or a folder of YOLO's text files, not {suffix}")
    return suffix not in (".json", ".csv")


def _coco(found: Sequence[Found], names: Sequence[str] | None) -> Iterator[dict[str, object]]:
    """Yield COCO's results."""
    ids = list(range(1, 91))
    if names is not None and list(names) == COCO:
        ids = [i for i in ids if i not in COCO_GAPS]
    image_ids = _image_ids({image for image, _, _ in found})
    for image, _, detections in found:
        for box, score, k in zip(detections.boxes.tolist(), detections.scores.tolist(), detections.classes.tolist()):
            x1, y1, x2, y2 = box
            corner_and_size = [round(value, 2) for value in (x1, y1, x2 - x1 + 1, y2 - y1 + 1)]
            category = ids[k - 1] if k <= len(ids) else k
            one = {"category_id": category, "bbox": corner_and_size, "score": round(score, 5)}
            yield {"image_id": image_ids[image], **one}


def _image_ids(images: Iterable[str]) -> dict[str, object]:
    """Return COCO's image_id of each image.

    It is the number that ends its name, as in COCO's files, if all images have one and none repeats; else the name without its
    suffix, if none repeats; else the path as given.
    """
    stems = {image: Path(image).stem for image in images}
    endings = {image: stem.rpartition("_")[2] for image, stem in stems.items()}
    if all(ending.isascii() and ending.isdecimal() for ending in endings.values()):
        numbers = {image: int(ending) for image, ending in endings.items()}
        if len(set(numbers.values())) == len(numbers):
            return dict(numbers)
    return {image: stems[image] if len(set(stems.values())) == len(stems) else image for image in stems}


def _table(found: Iterable[Found], names: Sequence[str] | None) -> Iterator[list[object]]:
    """Yield the rows of the CSV file, which the readers of annotations also read.

    An image without a detection has an empty row.
    """
    yield ["image", "xmin", "ymin", "xmax", "ymax", "class", "score", "width", "height"]
    for image, (height, width), detections in found:
        for box, score, k in zip(detections.boxes.tolist(), detections.scores.tolist(), detections.classes.tolist()):
            yield [image, *(round(value, 2) for value in box), class_name(k, names), round(score, 5), width, height]
        if not len(detections):
            yield [image, "", "", "", "", "", "", width, height]


def _yolo(folder: Path, found: Iterable[Found]) -> Iterator[tuple[Path, list[str]]]:
    """Yield a file and its lines for each image: class from 0, centre and size as fractions of the image, and the score."""
    taken: set[str] = set()
    for image, (height, width), detections in found:
        stem = Path(image).stem
        name = next(name for name in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if name.lower() not in taken)
        taken.add(name.lower())  # file systems may ignore case
        lines = []
        for box, score, k in zip(detections.boxes.tolist(), detections.scores.tolist(), detections.classes.tolist()):
            x1, y1, x2, y2 = box
            shares = (x1 + x2 + 1) / 2 / width, (y1 + y2 + 1) / 2 / height, (x2 - x1 + 1) / width, (y2 - y1 + 1) / height
            lines.append(f"{k - 1} {' '.join(f'{share:.6f}' for share in shares)} {score:.5f}\n")
        yield folder / f"{name}.txt", lines
