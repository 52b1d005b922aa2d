"""Exams: other numbers for each student, the same again for the same; the solutions are the layers'."""

from __future__ import annotations

import re
import subprocess
import sys
from fractions import Fraction
from math import ceil, floor
from pathlib import Path

import numpy as np
import pytest

from minicaffe import ops
from minicaffe.net import Net
from minicaffe.tutorials.exam import CLASSES, RULES, exam, load, of_student, pages

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ROOT / "examples" / "shapes"


@pytest.fixture(scope="module")
def nets() -> tuple[Net, Net]:
    return load(SHAPES)


def test_numbers_vary_by_student(nets: tuple[Net, Net]) -> None:
    first, again, other = (exam(*nets, of_student(name, 1)) for name in ("Ada", "Ada", "Alan"))
    assert first == again
    assert all(one.question != two.question for one, two in zip(first, other, strict=True))
    assert exam(*nets, of_student("Ada", 2)) != first


def search(pattern: str, text: str) -> tuple[str, ...]:
    """The groups of a pattern that a text must have."""
    found = re.search(pattern, text)
    assert found, text
    return found.groups()


def cells(question: str) -> dict[tuple[int, int], float]:
    """The table of a question's map: (row, column) -> value."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in question.splitlines() if line.startswith("|")]
    columns = [int(cell.removeprefix("column ")) for cell in lines[0][1:]]
    return {
        (int(row[0].removeprefix("row ")), column): float(cell)
        for row in lines[2:]
        for column, cell in zip(columns, row[1:], strict=True)
    }


def table(question: str) -> dict[str, list[float]]:
    """The rows of a question's table by their names."""
    lines = [line.strip("| ").split(" | ") for line in question.splitlines() if re.match(r"\| [A-Z] ", line)]
    return {name: [float(value) for value in values] for name, *values in lines}


@pytest.mark.parametrize("name", ["Ada", "Alan", "Grace"])
def test_each_task_can_be_solved_from_its_question(nets: tuple[Net, Net], name: str) -> None:
    overlap, anchor, nms, pool, vote, targets = exam(*nets, of_student(name, 1))

    boxes = [np.array(found.split(", "), float) for found in re.findall(r"\(([\d, ]+)\)", overlap.question)]
    iou = ops.bbox_overlaps(boxes[0][None], boxes[1][None])[0, 0]
    assert f"= {iou:.4f}" in overlap.solution

    x1, x2, y1, y2 = map(float, search(r"x (\S+) to (\S+) and from y (\S+) to (\S+)\.", anchor.question))
    deltas = [float(found) for found in re.findall(r"d[xywh] ([-\d.e]+\d)", anchor.question)]
    width, height = map(float, search(r"is (\d+) pixels wide and (\d+) high", anchor.question))
    box = ops.bbox_transform_inv(np.array([[x1, y1, x2, y2]]), np.array([deltas]))[0]
    box = np.clip(box, 0, [width - 1, height - 1] * 2)
    given = search(r"x1 (\S+), y1 (\S+), x2 (\S+), y2 (\S+)", anchor.solution)
    assert [float(one) for one in given] == pytest.approx(box.tolist(), abs=2e-3)
    assert anchor.solution.splitlines()[-2].startswith("  clipped to the image")

    dets = table(nms.question)
    kept = ops.nms(np.array([*dets.values()]), 0.5)
    assert f"Kept: {' and '.join([*dets][k] for k in kept)}." in nms.solution

    for task, pooled, ends in ((pool, max, _roi_pooling_ends), (vote, np.mean, _psroi_pooling_ends)):
        x, y = (ends(*axis) for axis in _axes(task.question))
        stated = search(r"clipped to the map +(\d+) to (\d+),.*? (\d+) to (\d+),", task.solution)
        assert (*x, *y) == tuple(map(int, stated))
        shown = cells(task.question)
        value = pooled([shown[i, j] for i in range(*y) for j in range(*x)])
        layer = float(search(r"by the layer (\S+):", task.solution)[0])
        assert value == pytest.approx(layer, rel=2e-3, abs=2e-3)
    assert search(r"in channel (\d+)", pool.question)[0] in search(r"conv8\[0, (\d+)\]", pool.solution)
    classes = dict(re.findall(r"(\d) (\w+)", search(r"for the classes (.*?)\.", vote.question)[0]))
    label, column, row = (
        search(pattern, vote.question)[0] for pattern in (r"class (\w+) read", r"column (\d)\)", r"\(row (\d)")
    )
    number = next(int(number) for number, name in classes.items() if name == label)
    assert f"channel {(number * 3 + int(row)) * 3 + int(column)} =" in vote.solution
    assert tuple(classes.values()) == CLASSES

    overlaps = table(targets.question)
    most = [max(column) for column in zip(*overlaps.values(), strict=True)]
    for anchor_name, values in overlaps.items():
        is_best = any(value == best for value, best in zip(values, most, strict=True))
        label = "1" if is_best or max(values) >= 0.7 else "0" if max(values) < 0.3 else "-1"
        assert f"| {anchor_name} | {label} |" in targets.solution


def _axes(question: str) -> list[tuple[Fraction, Fraction, int, int, int]]:
    """For x and y: the ends of a question's roi, its bin's number, the number of bins, the size of the map."""
    x1, y1, x2, y2 = map(Fraction, search(r"x1 (\S+), y1 (\S+), x2 (\S+), y2 (\S+) \(", question))
    row, column = map(int, search(r"\(row (\d), column (\d)\)", question))
    rows, columns = map(int, search(r"makes (\d) x (\d) bins", question))
    return [(x1, x2, column, columns, 49), (y1, y2, row, rows, 38)]


def _half_up(value: Fraction) -> int:
    return floor(value + Fraction(1, 2))


def _bin(start: Fraction, length: Fraction, size: int) -> tuple[int, int]:
    ends = floor(start), ceil(start + length)
    return min(max(ends[0], 0), size), min(max(ends[1], 0), size)


def _roi_pooling_ends(start: Fraction, end: Fraction, number: int, count: int, size: int) -> tuple[int, int]:
    first, last = _half_up(start / 8), _half_up(end / 8)
    length = Fraction(last - first + 1, count)
    return _bin(first + number * length, length, size)


def _psroi_pooling_ends(start: Fraction, end: Fraction, number: int, count: int, size: int) -> tuple[int, int]:
    first, last = Fraction(_half_up(start), 8), Fraction(_half_up(end) + 1, 8)
    length = (last - first) / count
    return _bin(first + number * length, length, size)


@pytest.mark.parametrize("name", ["Ada", "Alan", "Grace"])
def test_each_task_fits_on_paper(nets: tuple[Net, Net], name: str) -> None:
    _, _, nms, pool, vote, targets = exam(*nets, of_student(name, 1))
    numbers = [int(search(r"the bin reads .* = (\d+) cells", task.solution)[0]) for task in (pool, vote)]
    assert 6 <= numbers[0] <= 30 and 4 <= numbers[1] <= 12
    dets = table(nms.question)
    order = sorted(dets, key=lambda one: -dets[one][4])
    kept = search(r"Kept: (\w) and (\w)", nms.solution)
    assert kept[0] == order[0] and order[1] not in kept  # a dropped box comes before a kept one
    assert sorted(re.findall(r"^\| [P-S] \| (\S+)", targets.solution, re.MULTILINE)) == ["-1", "0", "1", "1"]


def test_pages(nets: tuple[Net, Net]) -> None:
    tasks = exam(*nets, of_student("Ada Lovelace", 1))
    (name, text), (solved_name, solved) = pages("Ada Lovelace", tasks)
    assert (name, solved_name) == ("Ada_Lovelace.md", "Ada_Lovelace-solutions.md")
    assert text.startswith(f"# Ada Lovelace: exam, 25 points\n\n{RULES}\n") and "Kept:" not in text
    for task in tasks:
        assert f"**Answer:** {task.answer}\n\n{task.solution}\n\n**Points:** {task.steps[0][0]} for " in solved
        assert task.answer not in text
    assert [task.points for task in tasks] == [3, 4, 4, 5, 5, 4]


@pytest.mark.parametrize("name", ["Ada", "Alan", "Grace"])
def test_a_short_answer_is_that_of_the_solution(nets: tuple[Net, Net], name: str) -> None:
    overlap, anchor, nms, pool, vote, targets = exam(*nets, of_student(name, 1))
    assert overlap.solution.endswith(f"= {overlap.answer}.")
    corners = search(r"x1 (\S+), y1 (\S+), x2 (\S+), y2 (\S+)", anchor.solution)
    assert [float(one) for one in anchor.answer.split(", ")] == pytest.approx([float(one) for one in corners], abs=0.051)
    assert f"Kept: {nms.answer}." in nms.solution and len(re.findall(r"[A-D] drops [A-D] \(", nms.solution)) == 2
    for task in (pool, vote):
        cells = [int(one) for one in search(r"rows (\d+) to (\d+), columns (\d+) to (\d+);", task.answer)]
        x1, x2, y1, y2 = map(int, search(r"clipped to the map +(\d+) to (\d+),.*? (\d+) to (\d+),", task.solution))
        assert cells == [y1, y2 - 1, x1, x2 - 1]
        layer = float(search(r"by the layer (\S+):", task.solution)[0])
        assert float(search(r"; (-?[\d.e-]+)(?:;|$)", task.answer)[0]) == pytest.approx(layer, rel=1e-3)
    assert search(r"row (\d+), column (\d+)$", pool.answer) == search(r"is at h (\d+), w (\d+)", pool.solution)
    assert search(r"^channel (\d+);", vote.answer) == search(r"channel (\d+) =", vote.solution)
    labels = re.findall(r"([P-S]) (-?\d)", targets.answer)
    assert labels == re.findall(r"^\| ([P-S]) \| (-?\d)", targets.solution, re.MULTILINE)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Ada\n\nAlan/../x\nAda\n")
    words = [sys.executable, "-m", "minicaffe.tutorials.exam", str(SHAPES), str(tmp_path / "out")]
    done = subprocess.run([*words, "--students", str(tmp_path / "names.txt")], capture_output=True, text=True, check=False)
    assert done.stdout == f"written: 2 exams and solutions in {tmp_path / 'out'}\n", done.stderr
    names = ["Ada-solutions.md", "Ada.md", "Alan_.._x-solutions.md", "Alan_.._x.md"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    failed = subprocess.run([*words[:3], str(tmp_path), "out"], capture_output=True, text=True, check=False)
    some = subprocess.run([*words, "--tasks", "4, 1"], capture_output=True, text=True, check=False)
    assert some.returncode == 0, some.stderr
    exam_text = (tmp_path / "out" / "exam.md").read_text(encoding="utf-8")
    assert re.findall(r"^#+ (.*)", exam_text, re.MULTILINE) == [
        "exam: exam, 8 points",
        "1. ROIPooling (5 points)",
        "2. Overlap (3 points)",
    ]
    wrong = subprocess.run([*words, "--tasks", "1,7"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "'1,7': give numbers from 1 to 6" in wrong.stderr
    assert failed.returncode == 1 and "shapes.yml" in failed.stderr and "Traceback" not in failed.stderr


def test_the_teachers_page_lists_the_tasks(nets: tuple[Net, Net]) -> None:
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| ([\w ,-]+) \| \d+ \| (\d+) \|$", page.partition("| task |")[2], re.MULTILINE)
    assert listed == [(task.title, str(task.points)) for task in exam(*nets, of_student("Ada", 1))]
