"""SECURITY.md and docs/reliability.md promise what is tested: each sentence and each row of a table is in the table at the
end of docs/reliability.md, beside its tests, or below among those that promise nothing.

A sentence is quoted by its beginning, a row of a table by its first cell. A test is `test_file.py::test_name`, a step of
CI `.ci/run: words of the step` or `.ci/full: step`.
"""

from __future__ import annotations

import re
from configparser import ConfigParser

import pytest
import tally

from minicaffe import limits

ROOT = tally.PAGE.parents[1]
TESTS = ROOT / "tests"
DOCUMENTS = {"SECURITY.md": ROOT / "SECURITY.md", "reliability.md": tally.PAGE}
HEADING = "## Promises and their tests"

NO_PROMISE = {
    "SECURITY.md": """
Files may come from strangers.
What you pass to a function
What a file contains
Users who may write
Treat both as
With `python -m minicaffe`, Python itself
The command `minicaffe` does not
The defaults are above any published model
A service that accepts
Whoever knows the address
minicaffe does not protect
If another program shortens
Whoever can change a folder
A hard link is
The limits bound memory
They do not bound
A model can be
To check the installed packages
On 22 November 2026
PyPI's list lacks
HDF5.
Crafted files cause
HDF5 2.1 and 2.2 fix
Read a stranger's
Python 3.10.
Pillow 13 needs
Python 3.10 gets
Please report
Include a file
A file is also a vulnerability
""",
    "reliability.md": """
This page describes how
SECURITY.md lists the limits
Checks for each format:
From Python:
The check sums every blob
This is cheap
Both kill at random moments
Each of these is a finding:
Seconds are CPU time
There they are wall-clock
A finding is an exception
The scale is
1,550 nets draw
These numbers differ
Both findings concern
A script or a Python layer may fork
Ctrl-C during the imports
You can delete this file
""",
}
"""Beginnings of sentences that say what they are about, what minicaffe cannot do, or what the reader should."""


def plain(text: str) -> str:
    """Without Markdown's marks and links."""
    return re.sub(r"[`*]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)).strip()


def units(text: str) -> list[str]:
    """Return the sentences of a document, and the first cells of its tables' rows."""
    text = text.partition(HEADING)[0]
    text = re.sub(f"{re.escape(tally.BEGIN)}.*?{re.escape(tally.END)}", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=- )", text):
        lines = paragraph.strip().splitlines()
        if lines and lines[0].startswith("|"):
            found += [plain(row.split(" | ")[0].strip("| ")) for row in lines[2:]]
        elif lines and not lines[0].startswith(("#", "![")):
            joined = " ".join(line.strip().removeprefix("- ") for line in lines)
            found += [plain(sentence) for sentence in re.split(r"(?<=[.!?])\**\s+(?=[`*A-Z0-9])", joined)]
    return found


def promises() -> list[tuple[str, list[str], list[str]]]:
    """Return the rows of the table: the document, beginnings of sentences, tests."""
    rows = []
    for document, part in zip(DOCUMENTS, tally.PAGE.read_text(encoding="utf-8").partition(HEADING)[2].split("\n| of ")[1:]):
        assert document in part.splitlines()[0]
        for row in part.splitlines()[2:]:
            if row.startswith("|"):
                quotes, tests = row.strip("| ").split(" | ")
                rows.append((document, [plain(quote) for quote in quotes.split(" / ")], re.findall("`([^`]*)`", tests)))
    return rows


def begins(unit: str, quote: str) -> bool:
    return unit == quote or (quote.endswith("...") and unit.startswith(quote.removesuffix("...")))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_sentence_has_a_test_or_promises_nothing(document: str) -> None:
    found = units(DOCUMENTS[document].read_text(encoding="utf-8"))
    quotes = [quote for name, quotes, _ in promises() for quote in quotes if name == document]
    nothing = [f"{plain(line)}..." for line in NO_PROMISE[document].strip().splitlines()]
    for unit in found:
        assert any(begins(unit, quote) for quote in (*quotes, *nothing)), f"{document}: no test for: {unit}"
    for quote in (*quotes, *nothing):
        assert any(begins(unit, quote) for unit in found), f"{document} does not say: {quote}"


def test_the_tests_exist() -> None:
    files: dict[str, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        files.setdefault(path.name, []).append(path.read_text(encoding="utf-8"))
    steps = {name: (ROOT / ".ci" / name).read_text(encoding="utf-8") for name in ("run", "full")}
    for _, quotes, tests in promises():
        assert tests, f"no test beside {quotes}"
        for test in tests:
            if test.startswith(".ci/run: "):
                assert f'step "{test.removeprefix(".ci/run: ")}' in steps["run"], test
                continue
            if test.startswith(".ci/full: "):
                assert f'\n    "{test.removeprefix(".ci/full: ")}: ' in steps["full"], test
                continue
            name, _, function = test.partition("::")
            assert any(re.search(rf"^def {function}\(", text, re.MULTILINE) for text in files.get(name, [])), test


def test_a_promise_without_a_test_is_found() -> None:
    text = "# Title\n\nOne thing. `Two` things\nare [here](x.md): yes.\n\n| a | b |\n|---|---|\n| a `row` | of it |\n"
    text += "\n- **Three.** Four.\n\n```console\n$ not this.\n```\n"
    assert units(text) == ["One thing.", "Two things are here: yes.", "a row", "Three.", "Four."]


def test_the_limits_are_those_of_the_page() -> None:
    """Names and defaults, in order."""
    text = DOCUMENTS["SECURITY.md"].read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+)( MiB| GiB|) \|", text, re.MULTILINE)
    factors = {"": 1, " MiB": 2**20, " GiB": 2**30}
    stated = {name: int(number.replace(",", "")) * factors[unit] for name, number, unit in rows}
    assert stated == {name: getattr(limits, name) for name in limits.NAMES}
    assert list(stated) == list(limits.NAMES)


READ_FILES = "numpy protobuf pillow pyyaml h5py lmdb plyvel cramjam onnx onnxruntime pyarrow ray[data] scipy".split()


def requirements() -> dict[str, list[str]]:
    """Return the versions that setup.cfg allows of each package that minicaffe runs with."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = {name: text for name, text in config["options.extras_require"].items() if name not in ("test", "dev")}
    found: dict[str, list[str]] = {}
    for line in re.split(r"[\n]|; (?=[a-z-]+[=<>\[])", "\n".join([config["options"]["install_requires"], *extras.values()])):
        name, versions = re.fullmatch(r"([\w\[\]-]*)([^;]*)(;.*)?", line.strip()).groups()[:2]  # type: ignore[union-attr]
        if name and not name.startswith("minicaffe["):
            found.setdefault(name, []).append(versions)
    return found


def test_dependencies_have_bounds() -> None:
    found = requirements()
    for name, allowed in found.items():
        assert all(re.search("<|==", versions) for versions in allowed), name
    for name in READ_FILES:
        assert all(re.match(">=", versions) for versions in found[name]), name


def test_known_vulnerabilities_are_below_the_bounds() -> None:
    found = requirements()
    assert found["pillow"] == [">=13,<15", ">=12.3,<15"]
    for name, fixed in (("ray[data]", (2, 55)), ("onnx", (1, 21))):
        [versions] = found[name]
        least = tuple(int(part) for part in versions.removeprefix(">=").partition(",")[0].split("."))
        assert least >= fixed


def test_the_oldest_releases_are_the_lower_bounds() -> None:
    """The releases are those for Python 3.10."""
    found = requirements()
    oldest = dict(re.findall(r"^([\w-]+)==([^\s;]+)", (TESTS / "oldest.txt").read_text(encoding="utf-8"), re.MULTILINE))
    for name, version in oldest.items():
        least = re.match(r">=([\d.]+)", found.get(name, found.get(f"{name}[data]", []))[-1])
        assert least and re.fullmatch(rf"{re.escape(least[1])}(\.0)*(\.\d+)?", version), name
