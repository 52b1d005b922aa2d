"""Copies of a notebook: the student's without solutions and outputs, nbgrader's with points; copies work in any folder."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
nbformat = pytest.importorskip("nbformat", reason="the extra notebook is not installed")
COPIES = runpy.run_path(str(ROOT / "docs" / "tutorials" / "copies.py"))
ANSWER = """def area(box):
    width = box[2] - box[0]
    ### BEGIN SOLUTION
    height = box[3] - box[1]
    return width * height
    ### END SOLUTION
"""

NAMES = ["exercise-1-area", "check-1-area"]


@pytest.fixture
def solved() -> Any:
    v4 = nbformat.v4
    exercise = v4.new_code_cell(ANSWER, metadata={"tags": ["exercise"]})
    outputs = [v4.new_output("stream", name="stdout", text="right")]
    check = v4.new_code_cell('check("1.area", area)', metadata={"tags": ["check"]}, outputs=outputs, execution_count=2)
    return v4.new_notebook(cells=[v4.new_markdown_cell("# Boxes"), exercise, check])


def test_a_student_gets_neither_solution_nor_output(solved: Any) -> None:
    text, exercise, check = COPIES["student"](solved).cells
    assert text.source == "# Boxes"
    assert exercise.source.rstrip() == "def area(box):\n    width = box[2] - box[0]\n    return None  # your answer"
    assert (check.source, check.outputs, check.execution_count) == ('check("1.area", area)', [], None)
    assert "BEGIN SOLUTION" in solved.cells[1].source and solved.cells[2].outputs  # the source is as it was


def test_nbgrader_gets_a_point_for_each_check(solved: Any) -> None:
    text, exercise, check = COPIES["graded"](solved).cells
    assert "nbgrader" not in text.metadata
    assert [exercise.metadata["nbgrader"]["grade_id"], check.metadata["nbgrader"]["grade_id"]] == NAMES
    facts = exercise.metadata["nbgrader"]
    assert (facts["grade"], facts["locked"], facts["solution"]) == (False, False, True)
    facts = check.metadata["nbgrader"]
    assert (facts["grade"], facts["locked"], facts["solution"], facts["points"]) == (True, True, False, 1)
    assert check.source == 'check("1.area", area, required=True)'
    assert exercise.source == ANSWER


def test_nbgrader_reads_them(solved: Any) -> None:
    """Its own preprocessors find the markers and accept the metadata."""
    preprocessors = pytest.importorskip("nbgrader.preprocessors", reason="nbgrader is not installed")
    copy, resources = COPIES["graded"](solved), {"metadata": {"path": "."}}
    copy, resources = preprocessors.ClearSolutions().preprocess(copy, resources)
    preprocessors.CheckCellMetadata().preprocess(copy, resources)
    assert "height" not in copy.cells[1].source and "NotImplementedError" in copy.cells[1].source


def test_a_check_that_nbgrader_would_not_require_is_refused(solved: Any) -> None:
    solved.cells[2].source = "check(NAME, area)"
    with pytest.raises(ValueError, match=r'check\("N.name", ANSWER\)'):
        COPIES["graded"](solved)


@pytest.mark.parametrize("path", COPIES["NOTEBOOKS"], ids=lambda path: path.stem)
def test_nbgrader_requires_each_answer(path: Path) -> None:
    copy = COPIES["graded"](nbformat.read(path, as_version=4))
    checks = [cell.source for cell in copy.cells if "check" in cell.metadata.get("tags", [])]
    assert len(checks) >= 2
    assert all(source.count("check(") == source.count(", required=True)") for source in checks)
    names = [cell.metadata["nbgrader"]["grade_id"] for cell in copy.cells if "nbgrader" in cell.metadata]
    assert len(set(names)) == len(names) == 2 * len(checks)


def test_a_copy_works_in_another_folder(solved: Any) -> None:
    text = "[IoU](../glossary.md#iou), [shapes](../../examples/shapes/README.md), [next](2-maps.ipynb), [web](https://a.org)"
    solved.cells[0].source = text
    solved.cells[1].source = 'folder = "../../examples/shapes/rfcn"'
    copy, folders = COPIES["portable"](solved)
    assert copy.cells[0].source == "IoU, shapes, [next](2-maps.ipynb), [web](https://a.org)"
    assert (copy.cells[1].source, folders) == ('folder = "examples/shapes/rfcn"', {"shapes"})
    linked, _ = COPIES["portable"](solved, "http://b.org/docs/", beside=False)
    places = "http://b.org/docs/glossary.html#iou", "http://b.org/docs/examples/shapes.html"
    assert linked.cells[0].source == f"[IoU]({places[0]}), [shapes]({places[1]}), next, [web](https://a.org)"
    assert solved.cells[0].source == text


@pytest.mark.parametrize("kind", ["student", "nbgrader"])
def test_copies_bring_what_they_read(tmp_path: Path, kind: str) -> None:
    COPIES["write_copies"](kind, tmp_path)
    found = {path.stem: path for path in tmp_path.glob("*/*.ipynb" if kind == "nbgrader" else "*.ipynb")}
    assert set(found) == {path.stem for path in COPIES["NOTEBOOKS"]}
    lesson = found["3-anchors"]
    assert lesson.parent == (tmp_path / "3-anchors" if kind == "nbgrader" else tmp_path)
    assert (lesson.parent / "examples/shapes/faster_rcnn/shapes_faster_rcnn.caffemodel").is_file()
    assert not [*tmp_path.rglob("film")]
    assert not [path for path in found.values() if "../" in path.read_text(encoding="utf-8").replace("../python", "")]


def test_a_bundle_has_all_parts(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "course"
    site.mkdir()
    with pytest.raises(SystemExit, match=r"not built: python site/build\.py"):
        COPIES["write_bundle"](folder, site)
    (site / "index.html").write_text("home")
    COPIES["write_bundle"](folder, site)
    assert sorted(path.name for path in folder.iterdir()) == ["README.txt", "notebooks", "site", "solved"]
    assert (folder / "site/index.html").read_text() == "home"
    assert "http://127.0.0.1:8000/glossary.html#anchor" in (folder / "notebooks/3-anchors.ipynb").read_text(encoding="utf-8")
    named = re.findall(r"(?:notebooks|site)[\w/]*", (folder / "README.txt").read_text())
    assert {"notebooks", "notebooks/examples/shapes", "site"} <= set(named)
    assert (folder / "notebooks/examples/shapes/rfcn/test.prototxt").is_file()
