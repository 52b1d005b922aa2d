"""README.md, docs/, the READMEs of examples/: their blocks run, links lead somewhere, commands and options exist.

    ```python            run, in order; a line `print(...)  # text` must print the text
    ```python torch      the same where PyTorch is installed
    ```console           run: its lines `$ minicaffe ...`; a line without $ and ... must be printed (see documented.py);
                         and its lines `$ python examples/...`
    ```python no-run     checked for nothing but its syntax
    ```console no-run    its commands and options must exist

All runnable blocks of a document are one program, run in a new folder that has the repository's examples/; one that imports
torch is left out where PyTorch is not installed.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from extras import require

from minicaffe.cli import COMMANDS, GROUPS, HIDDEN, main
from minicaffe.compiled import jit

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "models").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*/README.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *PAGES, *EXAMPLES]
NAMING = [*DOCUMENTS, *sorted((ROOT / "site" / "pages").rglob("*.md"))]
"""Texts whose commands and options must exist."""
OTHER_OPTIONS = {
    *("--help", "--debug", "--install-completion", "--x"),
    *("--remove", "--net", "--train", "--first-seed", "--onnx", "--count"),
    *("--gpus", "--bind-to", "--map-by"),
    *("--student", "--solved", "--nbgrader", "--site", "--students", "--tasks", "--bundle"),
}
"""Options in prose of minicaffe itself, of its other programs (scripts, benchmarks, the course), of docker and mpirun."""
RUN = ("python", "python torch") if find_spec("torch") else ("python",)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


names = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, the number of its first line, its lines."""

    info: str
    first: int
    lines: list[str]

    @property
    def commands(self) -> list[tuple[int, str]]:
        """Its commands with their line numbers."""
        found = [(self.first + i, re.sub(r"^\$ ", "", line)) for i, line in enumerate(self.lines)]
        return [(number, part.strip()) for number, line in found for part in line.split("&&") if is_command(part)]

    def shown(self, number: int) -> list[str]:
        """Return the shown output of the command in this line, without shortened lines."""
        after = itertools.takewhile(lambda line: not line.startswith("$ "), self.lines[number - self.first + 1 :])
        return [line for line in after if line.strip() and "..." not in line]


def is_command(text: str) -> bool:
    return text.strip().startswith("minicaffe ")


def blocks(text: str) -> Iterator[Block]:
    info, first, lines = None, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            if info is None:
                info, first, lines = line.strip().strip("`"), number + 1, []
            else:
                yield Block(info, first, lines)
                info = None
        elif info is not None:
            lines.append(line)
    assert info is None, f"line {first - 1}: a fence is not closed"


def program(document: Path) -> str:
    """Return the runnable blocks as a program whose lines are the document's."""
    text = document.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for block in blocks(text):
        if block.info in RUN:
            lines[block.first - 1 : block.first - 1 + len(block.lines)] = block.lines
        elif block.info == "console":
            for number, command in block.commands:
                words = shlex.split(command, comments=True)[1:]
                lines[number - 1] = f"import documented; documented.run({words!r}, {block.shown(number)!r})"
            for number, line in enumerate(block.lines, block.first):
                if line.startswith("$ python examples/"):
                    lines[number - 1] = (
                        f"import subprocess, sys; subprocess.run([sys.executable, *{line.split()[2:]!r}], check=True)"
                    )
    return "\n".join(lines) + "\n"


def promised(document: Path) -> list[str]:
    """Return the outputs that the python blocks promise."""
    lines = [line for block in blocks(document.read_text(encoding="utf-8")) if block.info in RUN for line in block.lines]
    return [found[1].rstrip() for line in lines if (found := re.search(r"^ *print\(.*\)  # (.*)$", line))]


NEEDS = {"adding-a-layer.md": "onnx", "porting.md": "onnx"}
"""The extra of a document's blocks."""
LONG = ("command-line.md", "gpu.md", "porting.md", "trace.md", "training.md", "your-detector.md")


def can_run(document: Path) -> bool:
    """Return whether a document has blocks to run, and PyTorch is installed if they import it."""
    text = program(document)
    return bool(text.strip()) and (find_spec("torch") is not None or not re.search(r"^import torch$", text, re.M))


@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=pytest.mark.slow if path.name in LONG else ()) for path in DOCUMENTS if can_run(path)],
    ids=name_of,
)
def test_blocks_run_and_print_what_they_promise(document: Path, tmp_path: Path) -> None:
    """Slow: documents whose commands train, or run detectors many times."""
    if document.name in NEEDS:
        require(NEEDS[document.name])
    text = program(document)
    script = tmp_path / f"{document.stem}.py"
    script.write_text(text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    paths = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        env={jit.VARIABLE: "numpy", **os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = iter(line.rstrip() for line in done.stdout.splitlines())
    for line in promised(document):
        assert line in printed, f"{document.name} promises {line!r}; printed was\n{done.stdout}"


@names
def test_every_row_has_a_header(document: Path) -> None:
    """A table begins with its header and a line of dashes: a blank line between two rows ends it."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    firsts = re.finditer(r"(?<!\|\n)^\|.*\n(.*)", text, re.MULTILINE)
    assert not [found[0] for found in firsts if not re.fullmatch(r"\|[ :|-]+\|", found[1])]


@names
def test_python_blocks_parse(document: Path) -> None:
    for block in blocks(document.read_text(encoding="utf-8")):
        if block.info.split(" ")[0] == "python":
            ast.parse("\n".join(block.lines))
            assert block.info in ("python", "python torch", "python no-run")


@names
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        name, _, heading = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), f"{document.name} links to {target}, which is not there"
        if heading:
            titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in anchors, f"{document.name} links to {target}; {path.name} has no such heading"


@pytest.mark.parametrize("document", NAMING, ids=name_of)
def test_commands_and_options_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    commands = [command for block in blocks(text) for _, command in block.commands]
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    codes = re.findall(r"`([^`]+)`", prose)
    commands += [" ".join(code.split()) for code in codes if is_command(code)]
    for command in commands:
        check_command(command.rstrip("`"))
    known = {name for command in COMMANDS for name in options_of(command)} | OTHER_OPTIONS
    unknown = [code for code in codes if (found := re.match(r"--[a-z][\w-]*", code)) and found[0] not in known]
    assert not unknown, f"{document.name}: no command has the options {unknown}"


def options_of(command: str) -> set[str]:
    """Return the options that a command shows: not its old spellings, which are hidden."""
    context = main.make_context("minicaffe", [], resilient_parsing=True)
    shown = [one for one in main.get_command(context, command).params if not getattr(one, "hidden", False)]  # type: ignore[union-attr]
    return {name for parameter in shown for name in [*parameter.opts, *parameter.secondary_opts]}


def check_command(command: str) -> None:
    """Check the command and its options, and that no number takes the place of a file."""
    words = shlex.split(command, comments=True)[1:]
    if words[0] in ("--help", "--version", "--install-completion", "COMMAND") or words[0].isupper():
        return
    if words[0] == "--debug":
        words = words[1:]
    assert words[0] in (*COMMANDS, *HIDDEN), command
    if words[0] == "script":  # words after the script's name are its own
        words = [words[0], *itertools.takewhile(lambda word: word.startswith("--"), words[1:])]
    options = options_of(words[0])
    for before, word in itertools.pairwise(words):
        if word.startswith("--"):
            assert word.split("=")[0] in {*options, "--help"}, f"{command}: no option {word}"
        elif re.fullmatch(r"-?\d+(,-?\d+)+", word):
            assert before.startswith("-"), f"{command}: no option before {word}"


@pytest.mark.parametrize("command", ["live --site", "explain NET LAYER 0,3,10,11", "lives", "run --forget=1"])
def test_what_does_not_exist_is_found(command: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(command)):
        check_command(f"minicaffe {command}")


def test_the_page_of_commands_lists_them_as_the_help_does() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    rows = [row.split("|")[1:3] for row in text.partition("| | |")[2].partition("\n\n")[0].splitlines()[2:]]
    found, group = dict[str, dict[str, str]](), ""
    for name, about in ((a.strip(), b.strip()) for a, b in rows):
        if not about:
            group = name.strip("*")
            found[group] = {}
        else:
            found[group][re.fullmatch(r"\[([\w-]+)\]\(#\1\)", name)[1]] = about  # type: ignore[index]
    assert found == GROUPS
    assert set(COMMANDS) <= {name for line in re.findall(r"^## (.*)$", text, re.M) for name in re.findall(r"[\w-]+", line)}
