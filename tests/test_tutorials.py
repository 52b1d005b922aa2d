"""The notebooks of docs/tutorials run in Jupyter and print what is stored in them, and their exercises' solutions are right.

Those that run the notebooks are left out where the extra notebook is not installed.

The tags of cells: `exercise` is a cell to complete, `check` the cell that judges it (it prints None until then), and the next
<details> holds the solution. What a `varies` cell prints differs between machines: the end of a training run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SOLUTION = re.compile(r"<details><summary>Solution</summary>\n\n```python\n(.*?\n)```\n.*?\n?</details>", re.DOTALL)
NUMBER = r"-?\d+\.\d*(?:e[+-]?\d+)?"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
EXTRA = all(find_spec(name) for name in ("ipykernel", "matplotlib", "nbclient", "nbformat"))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def tags(cell):
    return cell["metadata"].get("tags", [])


def source(cell):
    return "".join(cell["source"])


def solutions(cells):
    """Return the solutions in the cells, in their order."""
    return [found for cell in cells if cell["cell_type"] == "markdown" for found in SOLUTION.findall(source(cell))]


def outputs(cell):
    """Return a cell's outputs without stderr, where matplotlib may report its search for fonts."""
    return [out for out in cell["outputs"] if out.get("name") != "stderr"]


def printed(cell):
    return "".join("".join(out["text"]) for out in outputs(cell) if out["output_type"] == "stream")


def assert_same_text(found, stored, any_number=False):
    """Equal but for the last digits of numbers with a point, and for spaces; any_number: whatever the numbers."""
    if any_number:
        found, stored = (re.sub(r"-?\d+(?:\.\d*)?(?:e[+-]?\d+)?", "#", text) for text in (found, stored))
    assert re.sub(NUMBER, "#", found).split() == re.sub(NUMBER, "#", stored).split()
    numbers = [[float(value) for value in re.findall(NUMBER, text)] for text in (found, stored)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-2, abs=1e-6)


def test_there_are_nine_of_modest_size():
    assert [path.name.split("-")[0] for path in NOTEBOOKS] == list("123456789")
    assert max(path.stat().st_size for path in NOTEBOOKS) < 300_000


@each_notebook
def test_parts(path):
    """A goal; predictions; each exercise has a check and a solution; nothing prints True."""
    cells = read(path)
    text = "\n".join(source(cell) for cell in cells if cell["cell_type"] == "markdown")
    assert "**Goal.**" in text
    assert text.count("**Predict.**") >= 2
    order = [tag for cell in cells for tag in tags(cell) if tag in ("exercise", "check")]
    assert order == ["exercise", "check"] * (len(order) // 2) != []
    assert len(solutions(cells)) == text.count("### Exercise") == len(order) // 2
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(re.search(r"\b(True|False)$", printed(cell), re.MULTILINE) for cell in code)
    assert not any(out["output_type"] == "error" or out.get("name") == "stderr" for cell in code for out in cell["outputs"])


@each_notebook
def test_links(path):
    text = "\n".join(source(cell) for cell in read(path) if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (FOLDER / target).exists(), target


@pytest.mark.slow
@each_notebook
@pytest.mark.filterwarnings("default")
def test_in_jupyter(path):
    """A separate process takes seconds, while test_solutions runs the same cells in this one."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(fresh, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    for new, old in zip(fresh["cells"], stored["cells"], strict=True):
        if new["cell_type"] == "code":
            assert_same_text(printed(new), printed(old), any_number="varies" in tags(old))
            kinds = [{out["output_type"] for out in outputs(cell)} for cell in (new, old)]  # one stream may come in parts
            assert kinds[0] == kinds[1]


@each_notebook
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_solutions(path, monkeypatch):
    """With the solutions in place, every check prints numbers and passes. With wrong ones, each fails."""
    importlib.import_module("matplotlib").use("agg")
    monkeypatch.chdir(FOLDER)
    cells = read(path)
    answers, answer, wrong = iter(solutions(cells)), "", ""
    namespace = {"__name__": "__main__"}
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        if "exercise" in tags(cell):
            answer, wrong = next(answers), source(cell).replace("return None", "return 12345").replace("= None", "= print")
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if "check" in tags(cell):
                with pytest.raises((AssertionError, AttributeError, TypeError, ValueError)):
                    exec(f"{wrong}\n{source(cell)}", dict(namespace))
                out.truncate(0)
                exec(answer, namespace)
            exec(source(cell), namespace)
        if "check" in tags(cell):
            assert "None" in printed(cell)
            assert "None" not in out.getvalue()
        namespace["plt"].close("all")
    assert next(answers, None) is None


if not EXTRA:  # left out, not skipped: the extra test leaves the extra notebook out
    del test_in_jupyter, test_solutions
