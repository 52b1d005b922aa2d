"""Exams on the shapes detectors: the numbers differ for each student, and the solutions are those of minicaffe.explain.

    python -m minicaffe.tutorials.exam examples/shapes exams --students names.txt --seed 2027

writes exams/NAME.md and exams/NAME-solutions.md for each line of names.txt. The folder examples/shapes has the detectors.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import score_boxes
from minicaffe.errors import Error
from minicaffe.files import read_bytes, replacing
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.tracing.explanations import AxisWork, Explanation, RoiExplanation, explain

Array = NDArray[np.floating[Any]]

VOTES, POOL = "psroipooled_cls_rois", "roi_pool_conv8"
"""The ROI layers of the two detectors."""
CLASSES = "background", "circle", "square", "triangle"


class Task(NamedTuple):
    """A task of an exam, in Markdown. points: what its solution is worth."""

    title: str
    question: str
    solution: str
    points: int


def load(folder: Path) -> tuple[Net, Net]:
    """Return the R-FCN and the Faster R-CNN of examples/shapes after a pass over its scene. Raises Error."""
    settings, image = read_settings(folder / "shapes.yml"), load_image(folder / "scene.png")
    nets = []
    for kind in ("rfcn", "faster_rcnn"):
        weights = folder / kind / f"shapes_{kind}.caffemodel"
        net = Net(folder / kind / "test.prototxt", TEST, weights=weights, settings=settings)
        score_boxes(net, image)
        nets.append(net)
    return nets[0], nets[1]


def exam(rfcn: Net, faster: Net, rng: np.random.Generator) -> list[Task]:
    """Return an exam of five tasks on nets that `load` returned. rng: draws rois, bins and boxes."""
    return [_overlap(rng), _anchor(faster, rng), _nms(faster, rng), _roi_pooling(faster, rng), _votes(rfcn, rng)]


def of_student(name: str, seed: int) -> np.random.Generator:
    """Return the generator of random numbers for a student of a course."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _overlap(rng: np.random.Generator) -> Task:
    first = np.concatenate([corner := rng.integers(0, 20, 2), corner + rng.integers(20, 40, 2)])
    second = first + np.tile(rng.integers(3, 15, 2), 2)
    value = ops.bbox_overlaps(first[None].astype(float), second[None].astype(float))[0, 0]
    shared = first[2:] - second[:2] + 1
    areas = [int(np.prod(box[2:] - box[:2] + 1)) for box in (first, second)]
    text = f"Box A is {_box(first)} and box B is {_box(second)}: x1, y1, x2, y2 in pixels, and the ends belong to the box."
    work = (
        f"The intersection is {shared[0]} x {shared[1]} = {np.prod(shared)} pixels. "
        f"The IoU is {np.prod(shared)} / ({areas[0]} + {areas[1]} - {np.prod(shared)}) = {value:.4f}."
    )
    return Task("Overlap", f"{text} What is their intersection over union?", work, 3)


def _anchor(net: Net, rng: np.random.Generator) -> Task:
    roi = int(rng.integers(len(net.blobs["rois"].data)))
    found = explain(net, "proposal", roi=roi).text(rows=2)
    lines = found.splitlines()
    anchor = next(line for line in lines if line.lstrip().startswith("the anchor")).split("   ")
    x, y = [part.strip() for part in anchor if part.strip()][1:]
    deltas = re.findall(r"d[xywh] \S+", found)[:4]
    text = (
        f"An anchor goes from x {x} and from y {y}, ends included. The net predicts the deltas {', '.join(deltas)}. "
        f"The image is {int(net.blobs['data'].shape[3])} x {int(net.blobs['data'].shape[2])} pixels. "
        "Which box does the proposal layer make of it, before NMS?"
    )
    return Task("From an anchor to a proposal", text, _quoted(found), 4)


def _nms(net: Net, rng: np.random.Generator) -> Task:
    rois = net.blobs["rois"].data[:, 1:].astype(float)
    while True:
        middle = rois[rng.integers(len(rois))]
        near = np.argsort(-ops.bbox_overlaps(middle[None], rois)[0], kind="stable")[:5]
        dets = np.column_stack([np.round(rois[near]), np.round(rng.permutation(np.linspace(0.55, 0.95, 5)), 2)])
        overlaps, kept = ops.bbox_overlaps(dets[:, :4], dets[:, :4]), ops.nms(dets, 0.5)
        if len(kept) in (2, 3) and np.abs(overlaps - 0.5).min() > 0.02:  # not decided by rounding
            break
    table = _table(["box", "x1", "y1", "x2", "y2", "score"], [["ABCDE"[k], *map(_short, row)] for k, row in enumerate(dets)])
    order = np.argsort(-dets[:, 4])
    rows = [["ABCDE"[i], *(f"{overlaps[i, j]:.2f}" for j in order)] for i in order]
    names = ", ".join("ABCDE"[k] for k in kept)
    solution = f"By score: {', '.join('ABCDE'[k] for k in order)}. Kept: {names}. The overlaps:\n\n"
    return Task(
        "Non-maximum suppression",
        f"Which of these boxes does NMS with the threshold 0.5 keep?\n\n{table}",
        solution + _table(["IoU", *("ABCDE"[j] for j in order)], rows),
        4,
    )


def _roi_pooling(net: Net, rng: np.random.Generator) -> Task:
    values = net.blobs[POOL].data
    sides = net.blobs["rois"].data[:, 3:] - net.blobs["rois"].data[:, 1:3]
    large = (sides.min(axis=1) > 70)[:, None, None, None]  # bins of several cells
    at = tuple(int(one) for one in rng.choice(np.argwhere(large & (values > 0))))
    found = cast("RoiExplanation", explain(net, POOL, at))
    text = (
        f"ROIPooling makes {values.shape[2]} x {values.shape[3]} bins of {found.roi}. Its spatial_scale is {found.scale:g}. "
        f"Which cells of the map does bin (row {at[2]}, column {at[3]}) read, what is its value, and which cell gets its "
        f"gradient? A part of the map:\n\n{_cells(net, found)}"
    )
    return Task("ROIPooling", text, _quoted(found.text()), 5)


def _votes(net: Net, rng: np.random.Generator) -> Task:
    values = net.blobs[VOTES].data
    roi, label = int(rng.integers(len(values))), int(rng.integers(1, len(CLASSES)))
    row, column = (int(one) for one in rng.integers(values.shape[2], size=2))
    found = cast("RoiExplanation", explain(net, VOTES, (roi, label, row, column)))
    text = (
        f"PSROIPooling makes {values.shape[2]} x {values.shape[3]} bins of {found.roi}, for {len(CLASSES)} classes: "
        f"{', '.join(CLASSES)}. Its spatial_scale is {found.scale:g}. Which channel of the score maps does bin "
        f"(row {row}, column {column}) of the class {CLASSES[label]} read, which cells, and what is its vote? "
        f"A part of the right map:\n\n{_cells(net, found)}"
    )
    return Task("A vote", text, _quoted(found.text()), 5)


def _cells(net: Net, found: RoiExplanation) -> str:
    """Return the cells that a bin reads, and those around them, as a table."""

    def around(axis: AxisWork) -> range:
        return range(max(int(axis.clipped[0]) - 1, 0), min(int(axis.clipped[1]) + 1, axis.size))

    rows, columns = around(found.rows), around(found.columns)
    plane = net.blobs[found.map].data[found.roi.image, found.channel]
    body = [[f"row {i}", *(f"{plane[i, j]:.4g}" for j in columns)] for i in rows]
    return _table(["", *(f"column {j}" for j in columns)], body)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _box(box: Array | NDArray[np.integer[Any]]) -> str:
    return "(" + ", ".join(map(str, box.tolist())) + ")"


def _short(value: Any) -> str:
    return f"{value:g}"


def _quoted(text: Explanation | str) -> str:
    return f"```text\n{text}\n```"


def pages(name: str, tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Yield the file names and contents of a student's exam and of its solutions."""
    total = sum(task.points for task in tasks)
    for suffix, part in (("", "question"), ("-solutions", "solution")):
        head = f"# {name}: {'solutions' if suffix else 'exam'}, {total} points"
        parts = [f"## {k}. {one.title} ({one.points} points)\n\n{getattr(one, part)}" for k, one in enumerate(tasks, 1)]
        yield re.sub(r"[^\w.-]+", "_", name) + suffix + ".md", "\n\n".join([head, *parts]) + "\n"


def main() -> None:
    """Write the exams that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m minicaffe.tutorials.exam", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shapes", type=Path, help="the folder examples/shapes")
    parser.add_argument("out", type=Path, help="the folder to write into")
    parser.add_argument("--students", type=Path, metavar="FILE", help="a name on each line; default: one exam for all")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives all students other numbers")
    given = parser.parse_args()
    try:
        names = [line.strip() for line in read_bytes(given.students).decode().splitlines()] if given.students else ["exam"]
        rfcn, faster = load(given.shapes)
        given.out.mkdir(parents=True, exist_ok=True)
        count = 0
        for name in dict.fromkeys(filter(None, names)):
            for file, text in pages(name, exam(rfcn, faster, of_student(name, given.seed))):
                with replacing(given.out / file) as temporary:
                    temporary.write_text(text, encoding="utf-8")
            count += 1
    except (Error, OSError, UnicodeDecodeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(f"written: {count} exam{'s' * (count != 1)} and solutions in {given.out}")


if __name__ == "__main__":
    main()
