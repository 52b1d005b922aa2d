"""An output whose suffix says another format is refused with the next step, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minicaffe.cli import main, reference
from minicaffe.errors import Error

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
PROTOTXT, WEIGHTS = str(SHAPES / "rfcn" / "test.prototxt"), str(SHAPES / "rfcn" / "shapes_rfcn.caffemodel")
NET = [PROTOTXT, WEIGHTS]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", *NET, "-o", "m.pt"], "--out m.pt: this command writes .onnx, not .pt: give m.onnx; `minicaffe"),
        (["to-torch", *NET, "-o", "m.onnx"], "this command writes .py, not .onnx: give m.py; `minicaffe export` writes ONNX"),
        (["trace", *NET, "-o", "x.PNG"], "this command writes .html, not .png: give x.html; `minicaffe draw` draws nets"),
        (["trace", *NET, "--npz", "x.json"], "--npz x.json: this command writes .npz, not .json"),
        (["draw", PROTOTXT, "-o", "x.jpg"], "--out x.jpg: this command writes .svg, not .jpg: give x.svg; pictures"),
        (["dump", WEIGHTS, "-o", "w.onnx"], "this command writes .npz, not .onnx"),
        (["import", "m.onnx", "-o", "a.caffemodel", "b.prototxt"], "this command writes .prototxt, not .caffemodel"),
        (["cut", *NET, "-o", "a.prototxt", "b.npz"], "this command writes .caffemodel, not .npz"),
        (["merge-bn", *NET, "-o", "a.onnx", "b.h5"], "--out a.onnx: this command writes"),
        (["deploy", PROTOTXT, "-o", "a.py"], "this command writes .prototxt, not .py"),
        (["rescue", WEIGHTS, "-o", "a.caffemodel"], "this command writes .prototxt, not .caffemodel"),
        (["retarget", PROTOTXT, "--classes", "3", "--out", "a.json"], "this command writes .prototxt, not .json"),
        (["run", *NET, "--out", "a.csv"], "this command writes .npz, not .csv"),
        (["evaluate", *NET, str(SHAPES / "scene.json"), "-o", "a.csv"], "--out a.csv: this command writes .json"),
        (["evaluate", *NET, str(SHAPES / "scene.json"), "--draw", "a.gif"], "--draw a.gif: this command writes .png"),
        (["port", str(SHAPES), "-o", "a.pdf"], "this command writes .html, not .pdf"),
        (["layers", "--markdown", "-o", "a.html"], "this command writes .md, not .html"),
    ],
)  # fmt: skip
def test_another_format(words: list[str], said: str) -> None:
    ran = run(*words)
    assert ran.exit_code == 1 and said in ran.stderr
    assert os.listdir() == []


@pytest.mark.parametrize("name", ["weights.bin", "/dev/null", "weights"])
def test_other_names_are_taken(name: str) -> None:
    assert run("dump", WEIGHTS, "-o", name).exit_code == 0


def test_the_table_of_layers_is_whole_or_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking() -> str:
        raise Error('it needs PyTorch: pip install -e ".[torch]"')

    Path("layers.md").write_text("old")
    monkeypatch.setattr(reference, "layers_markdown", lacking)
    ran = run("layers", "--markdown", "-o", "layers.md")
    assert ran.exit_code == 1 and "pip install" in ran.stderr and Path("layers.md").read_text() == "old"
    monkeypatch.setattr(reference, "layers_markdown", lambda: "new\n")
    assert run("layers", "--markdown", "-o", "layers.md").stdout == "written: layers.md\n"
    assert Path("layers.md").read_text() == "new\n" and run("layers", "--markdown").stdout == "new\n"
    assert "--out does nothing without --markdown" in run("layers", "-o", "layers.md").stderr
    assert run("forks", "--markdown", "-o", "forks.md").exit_code == 0 and Path("forks.md").stat().st_size > 1000
