"""--anchors of the commands that make nets with py-faster-rcnn's Python layers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from own_anchors import SHAPES, known, write_own, write_repository  # noqa: F401 (a fixture)

from minicaffe.cli import main
from minicaffe.errors import pasted

pytestmark = pytest.mark.usefixtures("known")
CFG = "--cfg", SHAPES / "shapes.yml"


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    monkeypatch.chdir(tmp_path)
    return write_repository(tmp_path)


def test_detect_finds_what_the_net_with_its_anchors_finds(files: tuple[Path, Path, Path]) -> None:
    net, weights, file = files
    told = run("detect", net, weights, SHAPES / "scene.png", *CFG)
    assert told.exit_code == 1 and f"or give --anchors {pasted(str(file))}; or --allow-module" in told.output
    assert run("detect", net, weights, SHAPES / "scene.png", *CFG, "--anchors", file, "--save", "own.csv").exit_code == 0
    source = SHAPES / "faster_rcnn"
    words = source / "test.prototxt", source / "shapes_faster_rcnn.caffemodel", SHAPES / "scene.png", *CFG
    assert run("detect", *words, "--save", "usual.csv").exit_code == 0
    own, usual = (list(csv.reader(Path(name).read_text().splitlines())) for name in ("own.csv", "usual.csv"))
    assert own == usual and len(own) > 5


def test_other_commands_take_the_file(files: tuple[Path, Path, Path]) -> None:
    net, weights, file = files
    result = run("evaluate", net, weights, SHAPES / "scene.json", *CFG, "--anchors", file, "-o", "numbers.json")
    assert result.exit_code == 0, result.output
    assert json.loads(Path("numbers.json").read_text())["images"] == 1
    for words in (("trace", "-o", "trace.html"), ("summary",)):
        result = run(words[0], net, weights, *CFG, "--anchors", file, *words[1:])
        assert result.exit_code == 0, result.output
    assert "give --anchors" not in run("merge-bn", net, weights, "-o", "a.prototxt", "a.caffemodel").output, (
        "it has no such option"
    )


def test_a_file_that_cannot_be_read_is_named_with_its_line(files: tuple[Path, Path, Path]) -> None:
    net, weights, file = files
    write_own(file, "def generate_anchors(base_size=16,\n  scales=cfg.SCALES):")
    for command in (("detect", net, weights, SHAPES / "scene.png"), ("trace", net, weights)):
        result = run(*command, *CFG, "--anchors", file)
        assert result.exit_code == 1
        assert f"{file}:4: the default scales=cfg.SCALES cannot be read without running the file; write" in result.output


@pytest.mark.parametrize("command", ["detect", "summary"])
def test_a_net_without_such_layers_refuses_the_file(files: tuple[Path, Path, Path], command: str) -> None:
    Path("net.prototxt").write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 9 dim: 9 } } }\n'
        'layer { name: "r" type: "ReLU" bottom: "data" top: "r" }\n'
    )
    words = [SHAPES / "scene.png", "--random-weights"] if command == "detect" else []
    result = run(command, "net.prototxt", *words, "--anchors", files[2])
    assert result.exit_code == 1
    assert f"--anchors {files[2]}: no Python layer of the net makes anchors of numbers; leave the option out" in result.output
