"""Copies of a notebook: the student's without solutions and outputs, nbgrader's with points."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the extra notebook is not installed")
COPIES = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "copies.py"))
ANSWER = """def area(box):
    width = box[2] - box[0]
    ### BEGIN SOLUTION
    height = box[3] - box[1]
    return width * height
    ### END SOLUTION
"""


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
