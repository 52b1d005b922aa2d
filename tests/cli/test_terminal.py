"""What reaches a terminal: names of a stranger's files go through every command, and all that comes out is looked at."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import hostile
import pytest
from extras import OF_COMMAND, require
from hostile import CASES, FILE, WILD, to_pipe, to_terminal
from terminal_text import foreign

from minicaffe import files
from minicaffe.cli import main
from minicaffe.cli.console import PlainConsole, bar
from minicaffe.cli.terminal import inform, saying, warn
from minicaffe.errors import on_one_line, written_out
from minicaffe.layers.python import python

TEXTS = (".prototxt", ".html", ".svg", ".train", ".test", ".log", ".json", ".csv", ".md")
SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes" / "rfcn"
SCENE = SHAPES.parent / "scene.png"
COMMANDS = main.list_commands(click.Context(main))
COLOURED = ("summary",)
"""A command whose output has colours, in a table."""


def command_ways() -> Iterator[Any]:
    """Each command to a pipe and to a terminal. Slow: the terminal's colours to a pipe but for one, and `live`, which
    packs all of minicaffe."""
    for command in COMMANDS:
        for way in ("pipe", "colours", "terminal"):
            slow = command == "live" or way == ("pipe" if command in COLOURED else "colours")
            yield pytest.param(command, way, marks=pytest.mark.slow if slow else ())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "_allowed", set())
    monkeypatch.setattr(python, "_allowed", set())  # a script may import any module
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    return tmp_path


def test_every_command_has_a_case() -> None:
    assert sorted(CASES) == sorted(COMMANDS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("command", "way"), list(command_ways()))
def test_hostile_names(command: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if command in OF_COMMAND:
        require(OF_COMMAND[command])
    if way == "colours":
        monkeypatch.setenv("FORCE_COLOR", "1")
    for arguments, expected in CASES[command]():
        before = set(Path().rglob("*"))
        said = to_terminal(arguments, monkeypatch) if way == "terminal" else to_pipe(arguments)
        assert not foreign(said, terminal=way != "pipe"), (arguments, said)
        assert "Traceback" not in said or command == "script", said
        assert "💀" not in said
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)
        for part in expected:
            assert part in plain, (arguments, part, said)
        for path in set(Path().rglob("*")) - before:
            if path.suffix in TEXTS and path.is_file():
                assert not foreign(
                    path.read_text(encoding="utf-8", errors="surrogateescape").replace("\udcff", ""), terminal=False
                ), path


@pytest.mark.slow
@pytest.mark.parametrize("way", ["pipe", "terminal"])
@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_arguments(command: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are not there, and options that no command has."""
    name = FILE + WILD.replace("\0", "")
    count = sum(isinstance(param, click.Argument) for param in main.get_command(click.Context(main), command).params)
    needed = {"retarget": ["--classes", "3"], "export": ["-o", "x"], "merge-bn": ["-o", "x", "y"], "draw": ["-o", "x"]}
    given = [command, *needed.get(command, []), *[name] * (count or 1)]
    if command == "extract-features":
        given = [*given[:-4], "1"]
    for arguments in (given, [command, f"--{WILD}"], [f"{command}{WILD}"], [command, "--limit", WILD]):
        said = to_terminal(arguments, monkeypatch) if way == "terminal" else to_pipe(arguments)
        assert ("[/]" in said or arguments is given) and not foreign(said, terminal=way == "terminal"), (arguments, said)


def test_all_that_cannot_be_seen_is_written_out() -> None:
    unseen = [chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert len(unseen) > 2000
    for character in unseen:
        assert (written_out(character) == character) == (character in "\n\t"), repr(character)
        assert on_one_line(character).isprintable()
    assert written_out("\x1b\u202e\udcff\ud800\U000e0041") == r"\x1b\u202e\xff\ud800\U000e0041"
    for text in ("猫 [/] :skull: café ﷺ नमस्ते\u00a0\u3000 \\x1b", "a\n\tb"):
        assert written_out(text) == text


def test_only_the_script_of_a_user_writes_what_it_likes() -> None:
    Path("s.py").write_text("import sys\nsys.stdout.write('\\x1b[5mbars\\r')\n")
    assert to_pipe(["script", "s.py"]) == "\x1b[5mbars\r"


def test_what_a_layer_prints_is_written_out() -> None:
    Path("printing.py").write_text(
        "import caffe\nclass L(caffe.Layer):\n  def setup(self, b, t): print('\\x1b[5m', end='')\n"
        "  def reshape(self, b, t): t[0].reshape(1)\n".replace("import caffe", "import minicaffe as caffe")
    )
    Path("n.prototxt").write_text('layer { type: "Python" top: "t" python_param { module: "printing" layer: "L" } }')
    assert to_pipe(["summary", "n.prototxt", "--allow-module", "printing"]).startswith("\\x1b[5m")


@pytest.mark.slow
def test_a_traceback_is_written_out() -> None:
    """Of a fault of ours, or of another library's."""
    code = "import click, minicaffe.cli.reference as c\ndef bug(): raise ValueError('\\x1b[5m')\n"
    code += "c.layers_markdown = bug\nfrom minicaffe.cli import main\nmain(['layers', '--markdown'])"
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert found.returncode == 1 and r"ValueError: \x1b[5m" in found.stderr and "\x1b" not in found.stderr
    debug = to_pipe(["--debug", "summary", f"{WILD[:-1]}"])
    assert "Traceback" in debug and not foreign(debug, terminal=False)


@pytest.mark.slow
def test_what_a_stream_cannot_hold_is_written_out() -> None:
    environment = {"PATH": "", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(hostile.__file__).parents[2])}
    Path("n.prototxt").write_text('layer { name: "猫" type: "Input" top: "猫" input_param { shape { dim: 1 } } }')
    for arguments in (["summary", "n.prototxt"], ["猫"]):
        command = [sys.executable, "-m", "minicaffe", *arguments]
        found = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
        assert r"\u732b" in found.stdout + found.stderr and "Traceback" not in found.stderr, found.stderr


WRITING: list[tuple[list[object], str]] = [
    (["run", "n.prototxt", "--out", "a.npz"], "a.npz"),
    (["export", "n.prototxt", "--out", "a.onnx"], "a.onnx"),
    (["trace", "n.prototxt", "--text", "--npz", "a.npz"], "a.npz"),
    (["detect", SHAPES / "test.prototxt", SHAPES / "shapes_rfcn.caffemodel", SCENE, "--save", "a.csv"], "a.csv"),
]
QUICK = (("run", subprocess.PIPE), ("detect", subprocess.STDOUT))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "written", "stderr"),
    [
        pytest.param(words, written, stderr, marks=() if (words[0], stderr) in QUICK else pytest.mark.slow)
        for words, written in WRITING
        for stderr in (subprocess.PIPE, subprocess.STDOUT)
    ],
)
def test_a_file_is_written_even_if_nobody_reads_the_text(words: list[object], written: str, stderr: int) -> None:
    """As in `minicaffe run ... --out a.npz | head -1`. Each is a process: most of the pairs are slow."""
    if words[0] in OF_COMMAND:
        require(OF_COMMAND[str(words[0])])
    Path("n.prototxt").write_text('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 } } }')
    command = [sys.executable, "-m", "minicaffe", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(Path(hostile.__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment) as process:
        assert process.stdout
        process.stdout.close()
        assert process.wait(60) == 1
        assert not process.stderr or b"Error" not in process.stderr.read()
    assert Path(written).exists()


def test_records_of_the_log_are_escaped(caplog: pytest.LogCaptureFixture) -> None:
    """Other handlers than the command's get them, too: a byte of a name that is not UTF-8 ended pytest's own process."""
    for say in (inform, warn):
        with saying(logging.INFO):
            say("a\udcff\x1b[31m")
    assert [record.getMessage() for record in caplog.records] == [r"a\xff\x1b[31m", r"WARNING: a\xff\x1b[31m"]


def test_colours_that_are_forced_make_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With FORCE_COLOR, which servers for tests often set, a log keeps its lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert PlainConsole(err=True).is_terminal
    assert bar() is None
