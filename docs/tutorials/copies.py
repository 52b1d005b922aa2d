"""Copies of the course's notebooks. The notebooks of this folder are the source: solved, with outputs.

    python docs/tutorials/copies.py --student FOLDER   copies to work in: no solutions, no outputs
    python docs/tutorials/copies.py --solved FOLDER    the notebooks as they are
    python docs/tutorials/copies.py --nbgrader FOLDER  nbgrader's source: solved, with a point for each check
    python docs/tutorials/copies.py --run NOTEBOOK     run a notebook of this folder and store its outputs

Needs the extra notebook.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

HERE = Path(__file__).resolve().parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"), key=lambda path: int(path.stem.split("-")[0]))
SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION$", re.MULTILINE | re.DOTALL)

MARKERS = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)


def student(notebook: Any) -> Any:
    """Return a copy without outputs, with `return None` in the place of each solution."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.source = SOLUTION.sub(lambda found: f"{found[1]}return None  # your answer", cell.source)
    return copy


def graded(notebook: Any) -> Any:
    """Return a copy for nbgrader, which removes solutions itself. There a check fails without an answer."""
    copy = nbformat.from_dict(notebook)
    for number, cell in enumerate(copy.cells):
        tags = cell.metadata.get("tags", [])
        kind = next((tag for tag in ("exercise", "check") if tag in tags), None)
        if cell.cell_type != "code" or kind is None:
            continue
        is_check = kind == "check"
        facts = {"grade": is_check, "locked": is_check, "solution": not is_check, "task": False}
        cell.metadata["nbgrader"] = {**facts, "grade_id": f"{kind}-{number}", "schema_version": 3}
        if is_check:
            cell.metadata["nbgrader"]["points"] = 1
            cell.source = re.sub(r"^( *check\(.*)\)$", r"\1, required=True)", cell.source, flags=re.MULTILINE)
    return copy


def run(path: Path) -> None:
    """Run a notebook and store its outputs, without those of stderr."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, coalesce_streams=True, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"{path.stem.split('-')[0]}-{number}"
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
            for data in (out.data for out in cell.outputs if "image/png" in out.get("data", {})):
                data["image/png"] = fewer_colours(data["image/png"])
            cell.metadata.pop("execution", None)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, path)


def fewer_colours(png: str) -> str:
    """Return a picture (a PNG in base64) with a palette of 64 colours: a quarter of the bytes."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--student", metavar="FOLDER", type=Path)
    kinds.add_argument("--solved", metavar="FOLDER", type=Path)
    kinds.add_argument("--nbgrader", metavar="FOLDER", type=Path)
    kinds.add_argument("--run", metavar="NOTEBOOK", type=Path)
    given = parser.parse_args()
    if given.run:
        run(given.run.resolve())
        return
    kind, folder = next((name, value) for name, value in vars(given).items() if value)
    made = {"student": student, "nbgrader": graded, "solved": lambda notebook: notebook}[kind]
    folder.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        nbformat.write(made(nbformat.read(path, as_version=4)), folder / path.name)
    print(f"written: {len(NOTEBOOKS)} notebooks in {folder}")


if __name__ == "__main__":
    main()
