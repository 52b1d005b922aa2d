"""Exams on the shapes detectors: the numbers differ for each student, and the solutions are those of minicaffe.explain.

    python -m minicaffe.tutorials.exam examples/shapes exams --students names.txt --seed 2027

writes exams/NAME.md and exams/NAME-solutions.md for each line of names.txt. The folder examples/shapes has the detectors.
--tasks 1,3,4 writes these tasks only. Each solution has a short answer, the way to it, and points for its steps.
"""

from __future__ import annotations

import argparse
import re
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops
from minicaffe.data.images import load_image
from minicaffe.data.settings import TrainSettings, read_settings
from minicaffe.detection.detect import score_boxes
from minicaffe.errors import Error
from minicaffe.files import read_bytes, replacing
from minicaffe.layers.proposal.anchor_target import anchor_labels
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.tracing.explanations import AxisWork, RoiExplanation, explain

Array = NDArray[np.floating[Any]]

VOTES, POOL = "psroipooled_cls_rois", "roi_pool_conv8"
"""The ROI layers of the two detectors."""
CLASSES = "background", "circle", "square", "triangle"
RULES = (
    "A box is x1, y1, x2, y2 in pixels, and its ends belong to it. Rows, columns, bins and channels are counted from 0. "
    "You need a calculator. Show your work: a right way with a slip in the arithmetic is worth points."
)
TASKS = 6
OBJECT, BACKGROUND = 0.7, 0.3
"""The thresholds of the task on targets: py-faster-rcnn's."""


class Task(NamedTuple):
    """A task of an exam, in Markdown. answer: what to compare at a glance; steps: what they are worth, in points."""

    title: str
    question: str
    answer: str
    solution: str
    steps: tuple[tuple[int, str], ...]

    @property
    def points(self) -> int:
        """What the whole solution is worth."""
        return sum(points for points, _ in self.steps)


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
    """Return an exam of six tasks on nets that `load` returned. rng: draws rois, bins and boxes."""
    first = [_overlap(rng), _anchor(faster, rng), _nms(faster, rng)]
    return [*first, _roi_pooling(faster, rng), _votes(rfcn, rng), _targets(rng)]


def of_student(name: str, seed: int) -> np.random.Generator:
    """Return the generator of random numbers for a student of a course."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def _overlap(rng: np.random.Generator) -> Task:
    first, second = (np.concatenate([corner, corner + rng.integers(20, 40, 2)]) for corner in rng.integers(0, 18, (2, 2)))
    value = ops.bbox_overlaps(first[None].astype(float), second[None].astype(float))[0, 0]
    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    shared = high - low + 1
    areas = [int(np.prod(box[2:] - box[:2] + 1)) for box in (first, second)]
    text = f"Box A is {_box(first)} and box B is {_box(second)}. What is their intersection over union?"
    work = (
        f"The intersection goes from x {low[0]} to {high[0]} and from y {low[1]} to {high[1]}: "
        f"{shared[0]} x {shared[1]} = {np.prod(shared)} pixels. "
        f"The IoU is {np.prod(shared)} / ({areas[0]} + {areas[1]} - {np.prod(shared)}) = {value:.4f}."
    )
    steps = ((1, "the intersection"), (1, "both areas"), (1, "the union and the quotient"))
    return Task("Overlap", text, f"{value:.4f}", work, steps)


def _anchor(net: Net, rng: np.random.Generator) -> Task:
    roi = int(rng.integers(len(net.blobs["rois"].data)))
    found = explain(net, "proposal", roi=roi).text(rows=2)
    lines = found.splitlines()
    anchor = next(line for line in lines if line.lstrip().startswith("the anchor")).split("   ")
    x, y = [part.strip() for part in anchor if part.strip()][1:]
    deltas = re.findall(r"d[xywh] \S+", found)[:4]
    text = (
        f"An anchor goes from x {x} and from y {y}. The net predicts the deltas {', '.join(deltas)}. "
        f"The image is {int(net.blobs['data'].shape[3])} pixels wide and {int(net.blobs['data'].shape[2])} high. "
        "Which box does the proposal layer make of the anchor, before NMS? Give its corners with one decimal."
    )
    arithmetic = found[: found.index("\n\n", found.index("clipped to the image  "))]  # the rest is about NMS
    corners = ", ".join(f"{corner:.1f}" for corner in net.blobs["rois"].data[roi, 1:])
    last = "the corners, clipped; the new x2 and y2 get no - 1 here, so corners that are 1 too small lose this point only"
    steps = ((1, "the anchor's size and centre"), (1, "the new centre"), (1, "the new size"), (1, last))
    return Task("From an anchor to a proposal", text, corners, _quoted(arithmetic), steps)


def _nms(net: Net, rng: np.random.Generator) -> Task:
    rois = net.blobs["rois"].data[:, 1:].astype(float)
    while True:
        middle = rois[rng.integers(len(rois))]
        near = np.argsort(-ops.bbox_overlaps(middle[None], rois)[0], kind="stable")[:4]
        dets = np.column_stack([np.round(rois[near]), np.round(rng.permutation(np.linspace(0.6, 0.9, 4)), 2)])
        overlaps, kept = ops.bbox_overlaps(dets[:, :4], dets[:, :4]), ops.nms(dets, 0.5)
        order = np.argsort(-dets[:, 4])
        dropped = [k for k in order if k not in kept]
        # A dropped box drops none: a box is kept that a dropped one with a better score overlaps.
        trap = any(overlaps[k, d] > 0.5 and dets[d, 4] > dets[k, 4] for k in kept for d in dropped)
        if trap and len(kept) == 2 and np.abs(overlaps - 0.5).min() > 0.02:  # not decided by rounding
            break
    table = _table(["box", "x1", "y1", "x2", "y2", "score"], [["ABCD"[k], *map(_short, row)] for k, row in enumerate(dets)])
    rows = [["ABCD"[i], *(f"{overlaps[i, j]:.2f}" for j in order)] for i in order]
    names = " and ".join("ABCD"[k] for k in kept)
    first, second = kept
    drops = [(next(k for k in kept if overlaps[k, d] > 0.5), d) for d in dropped]
    decisive = [f"{'ABCD'[k]} drops {'ABCD'[d]} ({overlaps[k, d]:.2f})" for k, d in drops]
    spared = f"{'ABCD'[second]} stays, because {'ABCD'[first]} overlaps it by {overlaps[first, second]:.2f} only"
    solution = (
        f"By score: {', '.join('ABCD'[k] for k in order)}. Kept: {names}. {'. '.join([*decisive, spared])}. "
        "A box is dropped by a kept box only: a dropped box drops none. The overlaps:\n\n"
    )
    text = f"Which of these boxes does NMS with the threshold 0.5 keep? Name the overlaps that decide.\n\n{table}"
    steps = ((1, "the order of the scores"), (2, "the overlaps that decide"), (1, "the boxes that are kept"))
    table = _table(["IoU", *("ABCD"[j] for j in order)], rows)
    return Task("Non-maximum suppression", text, names, solution + table, steps)


def _roi_pooling(net: Net, rng: np.random.Generator) -> Task:
    positive = np.argwhere(net.blobs[POOL].data > 0)
    while True:
        at = tuple(int(one) for one in rng.choice(positive))
        found = cast("RoiExplanation", explain(net, POOL, at))
        if 6 <= _count(found) <= 30 and _by_hand(found):
            break
    text = (
        f"ROIPooling makes {_bins(found)} of {found.roi}. Its spatial_scale is {found.scale:g}. "
        f"Which cells of the map does bin (row {at[2]}, column {at[3]}) read in channel {at[1]}, what is its value, and "
        f"which cell gets the gradient of this value? A part of channel {at[1]}:\n\n{_cells(net, found)}"
    )
    rows, columns = (range(*map(int, axis.clipped)) for axis in (found.rows, found.columns))
    plane = net.blobs[found.map].data[found.roi.image, found.channel]
    i, j = max(((i, j) for i in rows for j in columns), key=lambda cell: plane[cell])
    answer = f"{_read(found)}; {plane[i, j]:.4g}; the gradient goes to row {i}, column {j}"
    bins = (1, "the rounded corners"), (1, "the roi's cells and the size of a bin"), (1, "the cells of the bin")
    return Task("ROIPooling", text, answer, _quoted(found.text()), (*bins, (1, "the value"), (1, "the gradient")))


def _votes(net: Net, rng: np.random.Generator) -> Task:
    values = net.blobs[VOTES].data
    while True:
        roi, label = int(rng.integers(len(values))), int(rng.integers(1, len(CLASSES)))
        row, column = (int(one) for one in rng.integers(values.shape[2], size=2))
        found = cast("RoiExplanation", explain(net, VOTES, (roi, label, row, column)))
        if 4 <= _count(found) <= 12 and _by_hand(found):
            break
    names = ", ".join(f"{k} {name}" for k, name in enumerate(CLASSES))
    text = (
        f"PSROIPooling makes {_bins(found)} of {found.roi}, for the classes {names}. "
        f"Its spatial_scale is {found.scale:g}. Which channel of the score maps does bin (row {row}, column {column}) of the "
        f"class {CLASSES[label]} read, which cells, and what is its vote? A part of this channel:\n\n{_cells(net, found)}"
    )
    answer = f"channel {found.channel}; {_read(found)}; {values[roi, label, row, column]:.4g}"
    bins = (1, "the corners, rounded to pixels"), (1, "the size of a bin"), (1, "the cells of the bin")
    return Task("A vote", text, answer, _quoted(found.text()), ((1, "the channel"), *bins, (1, "the mean")))


def _targets(rng: np.random.Generator) -> Task:
    kinds = [(0.72, 0.9, 0, 0.2), (0.35, 0.65, 0, 0.2), (0, 0.2, 0.22, 0.65), (0.05, 0.28, 0, 0.2)]
    overlaps = np.array([[rng.uniform(*kind[:2]), rng.uniform(*kind[2:])] for kind in kinds]).round(2)
    overlaps = rng.permutation(overlaps)[:, rng.permutation(2)]
    labels = anchor_labels(overlaps, TrainSettings(rpn_positive_overlap=OBJECT, rpn_negative_overlap=BACKGROUND))
    best = overlaps == overlaps.max(axis=0)
    work = []
    for name, row, label, is_best in zip("PQRS", overlaps, labels, best, strict=True):
        if label == 1:
            best_of = f"no anchor overlaps truth {'AB'[is_best.argmax()]} more"
            why = f"{row.max():g} is at least {OBJECT}" if row.max() >= OBJECT else best_of
        else:
            why = f"{row.max():g} is below {BACKGROUND}" if label == 0 else f"{row.max():g} is between the thresholds"
        work.append([name, f"{label:g}", why])
    text = (
        "Four anchors, all inside the image, have these overlaps with the two true boxes of a scene. "
        f"The thresholds of the AnchorTarget layer are {OBJECT} and {BACKGROUND}, and there are no other anchors. "
        "Which label (1, 0 or -1) does each anchor get, and why? "
        "Which anchors count in the loss of the classes, and which in the loss of the boxes?\n\n"
    )
    rows = [[name, *map(_short, row)] for name, row in zip("PQRS", overlaps, strict=True)]
    chosen = [" and ".join(row[0] for row in work if row[1] == "1"), ", ".join(row[0] for row in work if row[1] != "-1")]
    solution = f"\n\nThe loss of the classes counts {chosen[1]}. The loss of the boxes counts {chosen[0]}: objects alone move."
    answer = f"{', '.join(f'{name} {label}' for name, label, _ in work)}; classes {chosen[1]}; boxes {chosen[0]}"
    return Task(
        "Targets",
        text + _table(["IoU", "truth A", "truth B"], rows),
        answer,
        _table(["anchor", "label", "why"], work) + solution,
        ((2, "the labels, half a point each"), (1, "the reasons"), (1, "the two losses")),
    )


def _bins(found: RoiExplanation) -> str:
    return f"{found.rows.count} x {found.columns.count} bins"


def _read(found: RoiExplanation) -> str:
    """Return the rows and columns that a bin reads, with both ends."""
    ends = [(int(axis.clipped[0]), int(axis.clipped[1]) - 1) for axis in (found.rows, found.columns)]
    return f"rows {ends[0][0]} to {ends[0][1]}, columns {ends[1][0]} to {ends[1][1]}"


def _count(found: RoiExplanation) -> int:
    """Return the number of cells that a bin reads."""
    return int(np.prod([axis.clipped[1] - axis.clipped[0] for axis in (found.rows, found.columns)]))


def _by_hand(found: RoiExplanation) -> bool:
    """Return whether exact arithmetic gives the cells that the layer's float32 gives."""
    for axis in (found.rows, found.columns):
        length, start = Fraction(float(axis.extent)) / axis.count, Fraction(float(axis.corners[0]))
        ends = floor(axis.number * length + start), ceil((axis.number + 1) * length + start)
        if tuple(min(max(end, 0), axis.size) for end in ends) != tuple(map(int, axis.clipped)):
            return False
    return True


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


def _quoted(text: str) -> str:
    return f"```text\n{text}\n```"


def pages(name: str, tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """Yield the file names and contents of a student's exam and of its solutions."""
    total = sum(task.points for task in tasks)
    for suffix in ("", "-solutions"):
        head = f"# {name}: {'solutions' if suffix else 'exam'}, {total} points" + f"\n\n{RULES}" * (not suffix)
        texts = [_solved(one) if suffix else one.question for one in tasks]
        heads = [f"## {k}. {one.title} ({one.points} points)" for k, one in enumerate(tasks, 1)]
        parts = [f"{title}\n\n{text}" for title, text in zip(heads, texts, strict=True)]
        yield re.sub(r"[^\w.-]+", "_", name) + suffix + ".md", "\n\n".join([head, *parts]) + "\n"


def _solved(task: Task) -> str:
    """Return the solution of a task with its answer before it and the points of its steps after it."""
    steps = "; ".join(f"{points} for {step}" for points, step in task.steps)
    return f"**Answer:** {task.answer}\n\n{task.solution}\n\n**Points:** {steps}."


def _numbers(text: str) -> list[int]:
    """Return the numbers of tasks that a user typed: "1,3,4"."""
    numbers = list(dict.fromkeys(text.replace(" ", "").split(",")))
    if not set(numbers) <= {str(number) for number in range(1, TASKS + 1)}:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers from 1 to {TASKS}, such as 1,3,4")
    return [int(number) for number in numbers]


def main() -> None:
    """Write the exams that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m minicaffe.tutorials.exam", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shapes", type=Path, help="the folder examples/shapes")
    parser.add_argument("out", type=Path, help="the folder to write into")
    parser.add_argument("--students", type=Path, metavar="FILE", help="a name on each line; default: one exam for all")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives all students other numbers")
    parser.add_argument(
        "--tasks",
        type=_numbers,
        default=list(range(1, TASKS + 1)),
        metavar="1,3,4",
        help=f"the numbers of the tasks, 1 to {TASKS}; default: all",
    )
    given = parser.parse_args()
    try:
        names = [line.strip() for line in read_bytes(given.students).decode().splitlines()] if given.students else ["exam"]
        rfcn, faster = load(given.shapes)
        given.out.mkdir(parents=True, exist_ok=True)
        students = list(dict.fromkeys(filter(None, names)))
        for name in students:
            tasks = exam(rfcn, faster, of_student(name, given.seed))
            for file, text in pages(name, [tasks[number - 1] for number in given.tasks]):
                with replacing(given.out / file) as temporary:
                    temporary.write_text(text, encoding="utf-8")
    except (Error, OSError, UnicodeDecodeError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    print(f"written: {len(students)} exam{'s' * (len(students) != 1)} and solutions in {given.out}")


if __name__ == "__main__":
    main()
