"""Copies of the course's notebooks. The notebooks of this folder are the source: solved, with outputs.

    python docs/tutorials/copies.py --student FOLDER   copies to work in: no solutions, no outputs
    python docs/tutorials/copies.py --solved FOLDER    the notebooks with their solutions and outputs
    python docs/tutorials/copies.py --nbgrader FOLDER  nbgrader's source: each lesson is an assignment
    python docs/tutorials/copies.py --bundle FOLDER    the course offline: site, notebooks, detectors
    python docs/tutorials/copies.py --lessons FILE     rewrite the table of lessons in docs/teaching.md
    python docs/tutorials/copies.py --run NOTEBOOK     run a notebook of this folder and store its outputs

Each folder contains the files of examples/ that its notebooks read, so it works anywhere. Links to the
documentation are plain text; with --site URL they lead to its site. Needs the extra notebook.
"""

from __future__ import annotations

import argparse
import base64
import io
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOTEBOOKS = sorted(HERE.glob("*.ipynb"), key=lambda path: int(path.stem.split("-")[0]))
SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n.*?^[ \t]*### END SOLUTION$", re.MULTILINE | re.DOTALL)

MARKERS = re.compile(r"^[ \t]*### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)
CHECK = re.compile(r"""^( *check\("(\d+)\.(\w+)", [^()\n]*)\)$""", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\((?!https?:|#)([^()\s]+)\)")
EXAMPLES = re.compile(r"\.\./\.\./examples/(\w+)")
NOT_READ = shutil.ignore_patterns("__pycache__", "film", "*.solverstate", "*_iter_*")
"""Parts of examples/ that no notebook reads."""
ADDRESS = "http://127.0.0.1:8000/"
"""Of the site in a bundle."""
BUNDLE = """The course, offline.

Show the site, with its search. Then open {address} in a browser:
    python -m http.server 8000 --bind 127.0.0.1 --directory site
Open the notebooks (needs minicaffe's extra notebook, see teaching.html on the site):
    jupyter lab notebooks
Write an exam for each line of names.txt:
    python -m minicaffe.tutorials.exam notebooks/examples/shapes exams --students names.txt --seed 2027
"""


def student(notebook: Any) -> Any:
    """Return a copy without outputs, with `return None` in the place of each solution."""
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.source = SOLUTION.sub(lambda found: f"{found[1]}return None  # your answer", cell.source)
    return copy


def graded(notebook: Any) -> Any:
    """Return a copy for nbgrader, which removes solutions itself. There a check fails without an answer.

    Raises ValueError if a check has another form than check("N.name", ANSWER).
    """
    copy = nbformat.from_dict(notebook)
    exercise: Any = None
    for cell in copy.cells:
        tags = cell.metadata.get("tags", []) if cell.cell_type == "code" else []
        if "exercise" in tags:
            exercise = cell
        if "check" not in tags:
            continue
        found = CHECK.search(cell.source)
        if found is None:
            raise ValueError(f'{cell.source}\nis not check("N.name", ANSWER): nbgrader would not require it')
        cell.source = CHECK.sub(r"\1, required=True)", cell.source)
        for one, kind in ((exercise, "exercise"), (cell, "check")):
            is_check = kind == "check"
            facts = {"grade": is_check, "locked": is_check, "solution": not is_check, "task": False}
            facts |= {"grade_id": f"{kind}-{found[2]}-{found[3]}", "schema_version": 3}
            one.metadata["nbgrader"] = facts | ({"points": 1} if is_check else {})
    return copy


def portable(notebook: Any, site: str = "", beside: bool = True) -> tuple[Any, set[str]]:
    """Return a copy that works outside the repository, and the folders of examples/ that it reads.

    site: the documentation's address, for links to its pages; beside: the other notebooks are in its folder.
    """
    copy, folders = nbformat.from_dict(notebook), set[str]()

    def link(found: re.Match[str]) -> str:
        label, target = found.groups()
        path, _, anchor = target.partition("#")
        if path.endswith(".ipynb"):
            return found[0] if beside else label
        place = posixpath.normpath(posixpath.join("docs/tutorials", path)).removeprefix("docs/")
        place = re.sub(r"(/README)?\.md$", ".html", place)
        return f"[{label}]({site.rstrip('/')}/{place}{'#' * bool(anchor)}{anchor})" if site else label

    for cell in copy.cells:
        if cell.cell_type == "code":
            folders |= set(EXAMPLES.findall(cell.source))
            cell.source = EXAMPLES.sub(r"examples/\1", cell.source)
        else:
            cell.source = LINK.sub(link, cell.source)
    return copy, folders


def write_copies(kind: str, folder: Path, site: str = "") -> None:
    """Write copies of all notebooks with the files that they read. kind: student, solved or nbgrader."""
    made = {"student": student, "nbgrader": graded, "solved": nbformat.from_dict}[kind]
    for path in NOTEBOOKS:
        place = folder / path.stem if kind == "nbgrader" else folder
        copy, examples = portable(made(nbformat.read(path, as_version=4)), site, beside=kind != "nbgrader")
        place.mkdir(parents=True, exist_ok=True)
        nbformat.write(copy, place / path.name)
        for name in examples:
            source = ROOT / "examples" / name
            shutil.copytree(source, place / "examples" / name, ignore=NOT_READ, dirs_exist_ok=True)


def write_bundle(folder: Path, site: Path = ROOT / "build" / "site") -> None:
    """Write the course for use without a network. Raises SystemExit if the site is not built."""
    if not (site / "index.html").is_file():
        raise SystemExit(f"{site}: the site is not built: python site/build.py builds it")
    shutil.copytree(site, folder / "site", dirs_exist_ok=True)
    write_copies("student", folder / "notebooks", ADDRESS)
    write_copies("solved", folder / "solved", ADDRESS)
    (folder / "README.txt").write_text(BUNDLE.format(address=ADDRESS), encoding="utf-8")


def lessons() -> str:
    """Return a table of the lessons: title, time and goal, from the notebooks' own lines."""
    rows = ["| lesson | time | goal |", "|---|---|---|"]
    for path in NOTEBOOKS:
        cells = nbformat.read(path, as_version=4).cells
        text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        title = re.match("# (.*)", text)
        goal = re.search(r"\*\*Goal\.\*\* (.*?)(?:\n\n|\Z)", text, re.DOTALL)
        time = re.search(r"\*\*Time\.\*\* (\d+ (?:to \d+ )?minutes)", text)
        if title and goal and time:
            rows.append(f"| [{title[1]}](tutorials/{path.name}) | {time[1]} | {' '.join(goal[1].split())} |")
    return "\n".join(rows) + "\n"


def with_lessons(page: str) -> str:
    """Return a page with a current table of the lessons."""
    return re.sub(r"^\| lesson \| time \| goal \|\n(\|.*\n)*", lambda _: lessons(), page, flags=re.MULTILINE)


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
    kinds.add_argument("--bundle", metavar="FOLDER", type=Path)
    kinds.add_argument("--lessons", metavar="FILE", type=Path)
    kinds.add_argument("--run", metavar="NOTEBOOK", type=Path)
    parser.add_argument("--site", metavar="URL", default="", help="the documentation, for the copies' links")
    given = parser.parse_args()
    site = vars(given).pop("site")
    kind, path = next((name, value) for name, value in vars(given).items() if value)
    if kind == "run":
        run(path.resolve())
    elif kind == "lessons":
        path.write_text(with_lessons(path.read_text(encoding="utf-8")), encoding="utf-8")
    elif kind == "bundle":
        write_bundle(path)
        print(f"written: {path}; README.txt in it says how to use it")
    else:
        write_copies(kind, path, site)
        print(f"written: {len(NOTEBOOKS)} notebooks in {path}")


if __name__ == "__main__":
    main()
