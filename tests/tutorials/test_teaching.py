"""docs/teaching.md: its lessons, minutes, sections, tours and tasks are those of the course; its commands run."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "docs" / "tutorials"
TOURS = ROOT / "minicaffe" / "tracing" / "tour_files"
PAGE = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
HOURS = {"Two hours": 2, "Six hours": 6, "Twelve hours": 12}
each_syllabus = pytest.mark.parametrize("title", HOURS)


def section(title: str) -> str:
    """The text of a section, with its subsections."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,3}} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    return found[2]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    table = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def lesson(number: int) -> str:
    (path,) = LESSONS.glob(f"{number}-*.ipynb")
    return path.read_text(encoding="utf-8")


def test_lessons_are_those_of_the_notebooks() -> None:
    pytest.importorskip("nbformat", reason="the extra notebook is not installed")
    current = runpy.run_path(str(LESSONS / "copies.py"))["with_lessons"](PAGE)
    assert current == PAGE, "run: python docs/tutorials/copies.py --lessons docs/teaching.md"
    assert re.findall(r"^\| \[(\d+)\. ", PAGE, re.MULTILINE) == [str(number) for number in range(1, 11)]


@each_syllabus
def test_a_syllabus_fills_its_hours(title: str) -> None:
    assert sum(int(row[0]) for row in rows(title)) == 60 * HOURS[title]


@each_syllabus
def test_a_whole_lesson_gets_its_time(title: str) -> None:
    for minutes, _, part, _ in rows(title):
        if (found := re.fullmatch(r"lesson (\d+)", part)) and found[1] != "0":
            least = re.search(r"\*\*Time\.\*\* (\d+)", lesson(int(found[1])))
            assert least and int(minutes) >= int(least[1]), part


def test_the_longest_syllabus_has_all_lessons() -> None:
    found = [int(number) for row in rows("Twelve hours") for number in re.findall(r"^lesson (\d+)$", row[2])]
    assert found == list(range(11))


def test_sections_and_tours_exist() -> None:
    named = re.findall(r'lesson (\d+), ("[^|;]*")', PAGE)
    assert len(named) > 15
    for number, titles in named:
        for title in re.findall(r'"([^"]+)"', titles):
            assert re.search(rf'"#+ {re.escape(title)}(\\n)?"', lesson(int(number))), f"lesson {number}: {title}"
    tours = set(re.findall(r"tour `([\w-]+)`", PAGE))
    assert tours == {"rfcn", "roi-pooling", "learning"}
    assert tours <= {path.stem for path in TOURS.glob("*.json")}


@pytest.mark.parametrize("name", ["rfcn", "roi-pooling"])
def test_stops_and_questions_of_a_tour_are_counted(name: str) -> None:
    (said,) = [row[3] for row in rows("Two hours") if row[2] == f"tour `{name}`"]
    stops = json.loads((TOURS / f"{name}.json").read_text(encoding="utf-8"))["stops"]
    assert said.startswith(f"{len(stops)} stops, {sum('ask' in stop for stop in stops)} questions")


PROGRAMS = r"-m minicaffe\.tutorials\.exam|docs/tutorials/copies\.py(?! --bundle)"
COMMANDS = re.findall(rf"^\$ python ((?:{PROGRAMS}) .*)\n(?:(written: .*)\n)?", PAGE, re.MULTILINE)
"""The bundle needs a built site: test_copies.py writes one."""


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=[re.split(" --| ", command)[-1] for command, _ in COMMANDS])
def test_the_commands_run(command: str, printed: str, tmp_path: Path) -> None:
    if "copies.py" in command:
        pytest.importorskip("nbformat", reason="the extra notebook is not installed")
    for name in ("docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "names.txt").write_text("Ada\nAlan\nGrace\n")
    words = [sys.executable, *shlex.split(command)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{printed}\n" or not printed


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) == 3
