"""The notebooks of docs/tutorials run from their first cell to their last, and print what is stored in them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell):
    streams = [out for out in cell["outputs"] if out["output_type"] == "stream"]
    return "".join("".join(out["text"]) for out in streams)


def assert_same_text(found, stored):
    """Equal but for the last digits of numbers with a point, and for spaces."""
    number = r"-?\d+\.\d*(?:e[+-]?\d+)?"
    assert re.sub(number, "#", found).split() == re.sub(number, "#", stored).split()
    numbers = [[float(value) for value in re.findall(number, text)] for text in (found, stored)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-2, abs=1e-6)


@pytest.fixture
def in_folder(monkeypatch):
    monkeypatch.chdir(FOLDER)


def test_there_are_four():
    assert len(NOTEBOOKS) == 4
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 600_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_run_in_order(path, in_folder):
    namespace = {"__name__": "__main__"}
    for cell in code_cells(json.loads(path.read_text(encoding="utf-8"))):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec("".join(cell["source"]), namespace)
        assert_same_text(out.getvalue(), printed(cell))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_in_jupyter(path):
    nbformat = pytest.importorskip("nbformat", reason='needs pip install -e ".[notebook]"')
    nbclient = pytest.importorskip("nbclient", reason='needs pip install -e ".[notebook]"')
    pytest.importorskip("ipykernel", reason='needs pip install -e ".[notebook]"')
    stored = nbformat.read(path, as_version=4)
    fresh = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(fresh, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    client.execute()
    for new, old in zip(code_cells(fresh), code_cells(stored), strict=True):
        assert_same_text(printed(new), printed(old))
        kinds = [{out["output_type"] for out in cell["outputs"]} for cell in (new, old)]  # one stream may come in parts
        assert kinds[0] == kinds[1]
