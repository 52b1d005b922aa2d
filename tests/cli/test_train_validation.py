"""train --val: the test net that it finds, what it prints, the files that it keeps, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from small_rfcn import RFCN, TRAIN, make_small_rfcn, run, write_roidb

from minicaffe.cli import train_validation
from minicaffe.detection.evaluation import evaluate
from minicaffe.tracing.film_frames import frame_files, read_frame
from minicaffe.training import validation


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_small_rfcn()
    return tmp_path


def test_the_results_are_printed_and_the_best_weights_kept(folder: Path) -> None:
    result = run(*TRAIN, "--val", "val.json", "--val-every", 2, "--log", "log", "--film", "film", "--every", 5)
    assert result.exit_code == 0, result.output
    assert "val.json: 3 images for validation with test.prototxt, every 2 iterations and at the end" in result.output
    lines = re.findall(r"^iteration (\d+): voc_ap ([\d.]+) .*\((.*)\)$", result.output, re.MULTILINE)
    assert [int(at) for at, *_ in lines] == [2, 4, 5] and lines[0][2] == "the best so far"
    best = re.search(r"best: run_best.caffemodel \(iteration (\d+): voc_ap ([\d.]+)", result.output)
    assert best and best[2] == max(value for _, value, _ in lines)
    assert Path("run_best.caffemodel").is_file() and Path("run_iter_5.caffemodel").is_file()
    result = run("evaluate", "test.prototxt", "run_best.caffemodel", "val.json", "--cfg", "small.yml", "--out", "numbers.json")
    assert result.exit_code == 0, result.output
    assert f"{json.loads(Path('numbers.json').read_text())['map']:.4f}" == best[2]
    run("parse-log", "log", ".")
    rows = Path("log.test").read_text().splitlines()
    assert "voc_ap" in rows[0] and [float(row.split(",")[0]) for row in rows[1:]] == [2, 4, 5]
    frames = [read_frame(file) for file in frame_files("film").values()]
    assert [test.iteration for frame in frames for test in frame.tests] == [2, 4, 5]
    assert len(frames[-1].photos) == 2  # the film uses the test net of the validation


def test_old_snapshots_go_and_a_training_without_progress_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path("solver.prototxt").read_text().replace("max_iter: 5", "max_iter: 50 snapshot: 1")
    Path("solver.prototxt").write_text(text)
    options = ("--val", "val.json", "--val-every", 1, "--patience", 2, "--keep", 1)
    values = iter([0.5, 0.25, 0.5])

    def measured(*arguments: object, **rest: object) -> object:
        found = evaluate(*arguments, **rest)  # type: ignore[arg-type]
        value = next(values)
        for one in found.classes:
            object.__setattr__(one, "ap", value)
        return found

    monkeypatch.setattr(validation, "evaluate", measured)
    result = run(*TRAIN, *options)
    assert result.exit_code == 0, result.output
    assert "Iteration 3, 2 validations without a better one" in result.output
    assert "best: run_best.caffemodel (iteration 1:" in result.output
    assert sorted(path.name for path in folder.glob("*.solverstate")) == ["run_iter_3.solverstate"]
    result = run(*TRAIN, *options, "--snapshot", "latest")
    assert result.exit_code == 0, result.output
    assert "going on from run_iter_3.solverstate" in result.output
    assert not Path("run_iter_4.caffemodel").exists()


def test_images_of_another_folder_and_other_classes(folder: Path) -> None:
    Path("photos").mkdir()
    for path in folder.glob("val_*.png"):
        path.rename(Path("photos") / path.name)
    result = run(*TRAIN, "--val", "val.json", "--iterations", 1)
    assert result.exit_code == 1 and "val_0.png" in result.output
    result = run(*TRAIN, "--val", "val.json", "--val-images", "photos", "--iterations", 1)
    assert result.exit_code == 0, result.output
    write_roidb("val.json", 1, ["triangle", "square", "circle"])  # the same classes in another order
    result = run(*TRAIN, "--val", "val.json", "--iterations", 1)
    assert result.exit_code == 0, result.output
    write_roidb("val.json", 1, ["circle", "star"])
    result = run(*TRAIN, "--val", "val.json", "--iterations", 1)
    assert result.exit_code == 1 and "its classes are circle, star; the names given are circle, square, tri" in result.output


def test_a_warning_for_images_that_are_trained_on(folder: Path) -> None:
    result = run(*TRAIN, "--val", "train.json", "--iterations", 1)
    assert "WARNING: train.json: 2 of 2 images are also trained on" in result.output


def test_what_is_refused(folder: Path) -> None:
    Path("empty.json").write_text('{"classes": ["circle", "square", "triangle"], "images": []}')
    result = run(*TRAIN, "--val", "empty.json")
    assert result.exit_code == 1 and "--val empty.json: the 0 images to validate have no boxes" in result.output
    for option in ("--val-every", "--patience"):
        result = run(*TRAIN, option, 2)
        assert result.exit_code == 1 and f"{option} does nothing without --val" in result.output
    other = RFCN.parent / "faster_rcnn" / "test.prototxt"
    result = run(*TRAIN, "--val", "val.json", "--test-net", other)
    assert result.exit_code == 1 and "not a test net of the trained one: layer" in result.output
    Path("test.prototxt").unlink()
    result = run(*TRAIN, "--val", "val.json")
    assert result.exit_code == 1 and "found no test net with an input for an image (test.prototxt, " in result.output
    assert "name the test prototxt with --test-net" in result.output
    assert not list(folder.glob("*.caffemodel"))


def test_a_line_at_least_every_ten_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train_validation.INTERVAL == 10
    result = run(*TRAIN)
    assert "iteration 1: loss" not in result.output
    monkeypatch.setattr(train_validation, "INTERVAL", 0)
    result = run(*TRAIN, "--val", "val.json")
    for i in range(1, 6):
        assert f"iteration {i}: loss " in result.output
    assert "validated 2 of 3 images" in result.output
