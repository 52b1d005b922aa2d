"""Exams: other numbers for each student, the same again for the same; the solutions are the layers'."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minicaffe import ops
from minicaffe.net import Net
from minicaffe.tutorials.exam import CLASSES, exam, load, of_student, pages

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


@pytest.mark.parametrize("name", ["Ada", "Alan", "Grace"])
def test_each_task_can_be_solved_from_its_question(nets: tuple[Net, Net], name: str) -> None:
    overlap, anchor, nms, pool, vote = exam(*nets, of_student(name, 1))

    boxes = [np.array(found.split(", "), float) for found in re.findall(r"\(([\d, ]+)\)", overlap.question)]
    iou = ops.bbox_overlaps(boxes[0][None], boxes[1][None])[0, 0]
    assert f"= {iou:.4f}" in overlap.solution

    x1, x2, y1, y2 = map(float, search(r"x (\S+) to (\S+) and from y (\S+) to (\S+),", anchor.question))
    deltas = [float(found) for found in re.findall(r"d[xywh] ([-\d.e]+\d)", anchor.question)]
    width, height = map(float, search(r"is (\d+) x (\d+) pixels", anchor.question))
    box = ops.bbox_transform_inv(np.array([[x1, y1, x2, y2]]), np.array([deltas]))[0]
    box = np.clip(box, 0, [width - 1, height - 1] * 2)
    given = search(r"x1 (\S+), y1 (\S+), x2 (\S+), y2 (\S+)", anchor.solution)
    assert [float(one) for one in given] == pytest.approx(box.tolist(), abs=2e-3)

    lines = [line.strip("| ").split(" | ") for line in nms.question.splitlines() if re.match(r"\| [A-E] ", line)]
    dets = np.array([[float(value) for value in row[1:]] for row in lines])
    assert f"Kept: {', '.join('ABCDE'[k] for k in ops.nms(dets, 0.5))}." in nms.solution

    for task, pooled in ((pool, max), (vote, np.mean)):
        rows, columns = _clipped(task.solution)
        shown = cells(task.question)
        value = pooled([shown[i, j] for i in rows for j in columns])
        layer = float(search(r"by the layer (\S+):", task.solution)[0])
        assert value == pytest.approx(layer, rel=2e-3, abs=2e-3)
    assert any(name in vote.question for name in CLASSES[1:])


def _clipped(solution: str) -> tuple[range, range]:
    """The rows and the columns that a bin reads, of the line "clipped to the map"."""
    x1, x2, y1, y2 = map(int, search(r"clipped to the map +(\d+) to (\d+),.*? (\d+) to (\d+),", solution))
    return range(y1, y2), range(x1, x2)


def test_pages(nets: tuple[Net, Net]) -> None:
    tasks = exam(*nets, of_student("Ada Lovelace", 1))
    (name, text), (solved_name, solved) = pages("Ada Lovelace", tasks)
    assert (name, solved_name) == ("Ada_Lovelace.md", "Ada_Lovelace-solutions.md")
    assert text.startswith("# Ada Lovelace: exam, 21 points") and "Kept:" not in text
    assert all(task.solution in solved for task in tasks)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("Ada\n\nAlan/../x\nAda\n")
    words = [sys.executable, "-m", "minicaffe.tutorials.exam", str(SHAPES), str(tmp_path / "out")]
    done = subprocess.run([*words, "--students", str(tmp_path / "names.txt")], capture_output=True, text=True, check=False)
    assert done.stdout == f"written: 2 exams and solutions in {tmp_path / 'out'}\n", done.stderr
    names = ["Ada-solutions.md", "Ada.md", "Alan_.._x-solutions.md", "Alan_.._x.md"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    failed = subprocess.run([*words[:3], str(tmp_path), "out"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and "shapes.yml" in failed.stderr and "Traceback" not in failed.stderr
