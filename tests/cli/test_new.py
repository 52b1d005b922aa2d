"""new: the folder, its README's commands, and errors."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import command_of, main
from minicaffe.starters import STARTERS


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with names of classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").write_text("apple\n\npear, green\n")
    return tmp_path


def commands(readme: str) -> list[list[str]]:
    """The words of the commands in a README, without `minicaffe`."""
    lines = readme.replace("\n        --", " --").replace("\\\n", "").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("    minicaffe ")]


@pytest.mark.parametrize("detector", STARTERS)
def test_the_folder(detector: str) -> None:
    result = run("new", detector, "fruit", "--classes", "names.txt")
    assert result.exit_code == 0, result.output
    names = {"train.prototxt", "test.prototxt", "solver.prototxt", "classes.txt", "README.md"}
    assert {path.name for path in Path("fruit").iterdir()} == names | (
        {f"{detector}.yml"} if detector in ("rfcn", "zf") else set()
    )
    assert Path("fruit/classes.txt").read_text() == "apple\npear, green\n"
    assert sorted(re.findall("written: fruit/(.*)", result.stdout)) == sorted(path.name for path in Path("fruit").iterdir())


@pytest.mark.parametrize("detector", STARTERS)
def test_the_commands_of_the_readme_exist(detector: str) -> None:
    run("new", detector, ".", "--classes", "names.txt")
    found = commands(Path("README.md").read_text())
    assert [words[0] for words in found] == ["train", "evaluate", "detect", "trace"]
    for name, *words in found:
        command_of(name).make_context(name, list(words), parent=click.Context(main), resilient_parsing=True)
        options = {option for param in command_of(name).params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= options
        assert "classes.txt" in words
    assert ("mobilenet" in detector) == ("--scale-factor" in found[1])


def test_an_ssd_from_annotations_to_detections() -> None:
    random = np.random.default_rng(1)
    images, annotations = [], []
    for i in range(4):
        pixels = random.integers(0, 80, (60, 80, 3), np.uint8)
        pixels[10:50, 20:60] = 250
        Image.fromarray(pixels).save(f"{i}.jpg")
        images.append({"id": i, "file_name": f"{i}.jpg", "width": 80, "height": 60})
        annotations.append({"id": i, "image_id": i, "category_id": 1, "bbox": [20, 10, 40, 40]})
    categories = [{"id": 1, "name": "pear, green"}, {"id": 2, "name": "apple"}]
    Path("train.json").write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    run("new", "ssd", ".", "--classes", "names.txt")
    solver = Path("solver.prototxt")
    solver.write_text(solver.read_text().replace("max_iter: 6000", "max_iter: 2").replace("display: 20", "display: 1"))
    Path("train.prototxt").write_text(Path("train.prototxt").read_text().replace("batch_size: 8", "batch_size: 2"))
    train, evaluate, detect, _ = (
        [{"val.json": "train.json", "photo.jpg": "0.jpg"}.get(word, word).replace("_6000", "_2") for word in words]
        for words in commands(Path("README.md").read_text())
    )
    result = run(*train)
    assert result.exit_code == 0 and "train.json: 4 images, 3 classes" in result.stdout, result.output
    result = run(*evaluate)
    assert result.exit_code == 0 and re.search(r"apple +0 .*\n *pear, green +4 ", result.stdout), result.output
    result = run(*detect, "--threshold", "0.01")
    assert (
        result.exit_code == 0
        and "0.jpg: " in result.stdout
        and Path("detections/0.jpg").exists() | Path("detections/0.png").exists()
    ), result.output


def test_the_background_is_not_a_class() -> None:
    Path("names.txt").write_text("__background__\ncat\n")
    assert run("new", "ssd", "cats", "--classes", "names.txt").exit_code == 0
    assert Path("cats/classes.txt").read_text() == "cat\n"
    assert "num_classes: 2\n" in Path("cats/test.prototxt").read_text()


@pytest.mark.parametrize(
    ("names", "target", "message"),
    [
        ("\n", "made", "names.txt: no class names; write one a line"),
        ("background\n", "made", "names.txt: names only the background"),
        ("cat\ndog\ncat\n", "made", "names.txt: the class cat is named twice"),
        ("cat\n", "names.txt", "FOLDER names.txt: this is a file"),
        ("cat\n", "old", "old/README.md already exists: remove it, or give another folder"),
    ],
)
def test_errors_write_nothing(names: str, target: str, message: str) -> None:
    Path("names.txt").write_text(names)
    Path("old").mkdir()
    Path("old/README.md").write_text("mine")
    result = run("new", "ssd", target, "--classes", "names.txt")
    assert result.exit_code == 1 and message in result.stderr
    assert [path.name for path in Path("old").iterdir()] == ["README.md"] and Path("old/README.md").read_text() == "mine"
    assert not Path("made").exists()
