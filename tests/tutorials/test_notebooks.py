"""The notebooks of docs/tutorials run in Jupyter and print what is stored in them; students' copies run without answers.

Those that run the notebooks are left out where the extra notebook is not installed.

The tags of cells: `exercise` is a cell with a solution between nbgrader's markers, `check` the cell that judges it. What a
`varies` cell prints differs between machines: the end of a training run.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import io
import json
import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from minicaffe.tutorials.figures import HERE

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = r"-?\d+\.\d*(?:e[+-]?\d+)?"
TIME = re.compile(r"\*\*Time\.\*\* \d+ (to \d+ )?minutes")
Cell = dict[str, Any]

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
EXTRA = all(find_spec(name) for name in ("ipykernel", "matplotlib", "nbclient", "nbformat"))


def read(path: Path) -> list[Cell]:
    cells: list[Cell] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def tags(cell: Cell) -> list[str]:
    found: list[str] = cell["metadata"].get("tags", [])
    return found


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def outputs(cell: Cell) -> list[Cell]:
    """Return a cell's outputs without stderr, where matplotlib may report its search for fonts."""
    return [out for out in cell["outputs"] if out.get("name") != "stderr"]


def printed(cell: Cell) -> str:
    return "".join("".join(out["text"]) for out in outputs(cell) if out["output_type"] == "stream")


def students_copy(path: Path) -> list[Cell]:
    copies = runpy.run_path(str(FOLDER / "copies.py"))
    notebook = importlib.import_module("nbformat").read(path, as_version=4)
    copied: list[Cell] = copies["portable"](copies["student"](notebook))[0].cells
    return copied


def assert_same_text(found: str, stored: str, any_number: bool = False) -> None:
    """Equal but for the last digits of numbers with a point, and for spaces; any_number: whatever the numbers."""
    if any_number:
        found, stored = (re.sub(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?", "#", text) for text in (found, stored))
    assert re.sub(NUMBER, "#", found).split() == re.sub(NUMBER, "#", stored).split()
    numbers = [[float(value) for value in re.findall(NUMBER, text)] for text in (found, stored)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-2, abs=1e-6)


def test_modest_size() -> None:
    assert max(path.stat().st_size for path in FOLDER.glob("*.ipynb")) <= 300_000


@each_notebook
def test_parts(path: Path) -> None:
    """A goal, a time, predictions, an interactive figure; each exercise has a solution and a check; nothing prints True."""
    cells = read(path)
    text = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
    assert text.count("**Goal.**") == 1
    assert TIME.search(text)
    assert text.count("**Predict.**") >= 2
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    order = [tag for cell in code for tag in tags(cell) if tag in ("exercise", "check")]
    assert order == ["exercise", "check"] * (len(order) // 2)
    assert len(order) >= 4
    assert all("### BEGIN SOLUTION" in source(cell) for cell in code if "exercise" in tags(cell))
    assert all("check(" in source(cell) for cell in code if "check" in tags(cell))
    assert any("<iframe" in json.dumps(cell["outputs"]) for cell in code)
    assert not any(re.search(r"\b(True|False)$", printed(cell), re.MULTILINE) for cell in code)
    assert not any(out["output_type"] == "error" or out.get("name") == "stderr" for cell in code for out in cell["outputs"])


@each_notebook
def test_stored_figures_have_the_scripts_of_today(path: Path) -> None:
    parts = [(Path(str(HERE)) / name).read_text(encoding="utf-8") for name in ("common.js", "common.css")]
    shown = [
        html.unescape("".join(out.get("data", {}).get("text/html", "")))
        for cell in read(path)
        for out in cell.get("outputs", [])
    ]
    pages = [page for page in shown if "<iframe" in page]
    assert pages
    for page in pages:
        assert all(part in page for part in parts), f"python docs/tutorials/copies.py --run {path.name} stores it anew"


@each_notebook
def test_links(path: Path) -> None:
    text = "\n".join(source(cell) for cell in read(path) if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (FOLDER / target).exists(), target


@each_notebook
def test_the_table_of_lessons(path: Path) -> None:
    """Each lesson is a row of docs/README.md, with the minutes that the lesson states."""
    text = "\n".join(source(cell) for cell in read(path) if cell["cell_type"] == "markdown")
    time = re.search(r"\*\*Time\.\*\* (\d+(?: to \d+)?) minutes", text)
    rows = (FOLDER.parent / "README.md").read_text(encoding="utf-8").splitlines()
    row = next((row for row in rows if f"](tutorials/{path.name}) |" in row), "")
    assert time and row.endswith(f"| {time[1]} |")


@pytest.mark.slow
@each_notebook
@pytest.mark.filterwarnings("default")
def test_in_jupyter(path: Path) -> None:
    """A separate process takes seconds, while test_students_copy runs the same cells in this one."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(fresh, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    for new, old in zip(fresh["cells"], stored["cells"], strict=True):
        if new["cell_type"] == "code":
            assert_same_text(printed(new), printed(old), any_number="varies" in tags(old))
            kinds = [{out["output_type"] for out in outputs(cell)} for cell in (new, old)]  # one stream may come in parts
            assert kinds[0] == kinds[1]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem == "8-training"), id=path.stem) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_students_copy(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a folder of its own it runs to the end without solutions, and each check says that there is no answer yet."""
    importlib.import_module("matplotlib").use("agg")
    (tmp_path / "examples").symlink_to(FOLDER.parents[1] / "examples")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in students_copy(path):
        assert not cell.get("outputs")
        assert "SOLUTION" not in cell["source"]
        if cell["cell_type"] != "code":
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(cell["source"], namespace)
        if "check" in tags(cell):
            assert "no answer yet" in out.getvalue()
        importlib.import_module("matplotlib.pyplot").close("all")


if not EXTRA:  # left out, not skipped: the extra test leaves the extra notebook out
    del test_in_jupyter, test_students_copy
