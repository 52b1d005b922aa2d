"""train --plot, --csv, --tensorboard and --find-lr, and parse-log --plot: what they write, and what is refused."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from small_rfcn import TRAIN, make_small_rfcn, run

from minicaffe.cli.train_record import RecordOptions


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_small_rfcn()
    return tmp_path


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_detector_with_validation(folder: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra minicaffe[tensorboard] is not installed")
    written = ("--plot", "run.png", "--csv", "run.csv", "--tensorboard", "events")
    result = run(*TRAIN, "--val", "val.json", "--val-every", 2, *written, "--iterations", 3)
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if line.startswith("written: ")] == [
        f"written: {name}" for name in written[1::2]
    ]
    first = Path("run.png").read_bytes()
    result = run(*TRAIN, "--val", "val.json", "--val-every", 2, *written, "--iterations", 2, "--snapshot", "latest")
    assert result.exit_code == 0, result.output
    found = rows("run.csv")
    assert [row["iteration"] for row in found] == list("12345")
    assert [row["val/voc_ap"] != "" for row in found] == [False, True, True, True, True]  # the first run ended at 3
    outputs = ["accuracy", "loss_bbox", "loss_cls", "rpn_cls_loss", "rpn_loss_bbox"]
    assert list(found[0])[:9] == ["iteration", "seconds", "lr", "loss", *(f"train/{name}" for name in outputs)]
    assert all(float(row["lr"]) == pytest.approx(0.01) for row in found)
    assert len(list(Path("events").iterdir())) in (1, 2)  # two, unless both runs begin in one second
    with Image.open("run.png") as image:
        assert image.format == "PNG" and Path("run.png").read_bytes() != first
    assert not list(folder.glob(".*"))


def test_other_ranks_write_nothing() -> None:
    class Trainer:
        class exchange:
            rank = 1

    options = RecordOptions(plot="run.png", csv="run.csv", tensorboard="events")
    trainer: Any = Trainer
    assert options.recorders(trainer, 5) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "run.jpg"], "--plot run.jpg: this command writes .png, not .jpg"),
        (["--plot", "run"], "--plot run: the picture is a PNG file; give a name that ends in .png"),
        (["--csv", "absent/run.csv"], "--csv absent/run.csv: there is no folder"),
        (["--csv", "run.json"], "--csv run.json: this command writes .csv, not .json: give run.csv"),
        (["--csv", "train.json"], "--csv train.json: this is an input, and would be replaced"),
        (["--csv", "a.csv", "--log", "a.csv"], "--csv a.csv: --log names this file too; give another name"),
        (["--tensorboard", "train.json"], "--tensorboard train.json: this is a file; give the name of a folder"),
        (["--csv", "/dev/null"], "/dev/null: cannot be read: it is a device, not a file"),
        (
            ["--csv", "other.csv"],
            "other.csv: its columns are not this training's (it lacks iteration, seconds, lr, loss, train/accuracy",
        ),
    ],
)
def test_what_is_refused(folder: Path, options: list[str], message: str) -> None:
    Path("other.csv").write_text("a,b\n1,2\n")
    result = run(*TRAIN, *options)
    assert result.exit_code == 1 and message in result.output
    assert Path("other.csv").read_text() == "a,b\n1,2\n"
    assert not list(folder.glob("*.caffemodel"))


def test_without_tensorboardx(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.event_file_writer", raising=False)
    result = run(*TRAIN, "--tensorboard", "events")
    assert result.exit_code == 1 and "need the package tensorboardX: pip install -e" in result.output
    assert "net: " not in result.output  # before work starts


def test_the_plot_of_a_log(folder: Path) -> None:
    Path("solver.prototxt").write_text(Path("solver.prototxt").read_text() + " display: 1")
    assert run(*TRAIN, "--log", "train.log").exit_code == 0
    result = run("parse-log", "train.log", "--plot", "log.png")
    assert (result.exit_code, result.output) == (0, "drawn: log.png\n")
    with Image.open("log.png") as image:
        assert image.format == "PNG"
    result = run("parse-log", "train.log", ".", "--plot", "log.png")
    assert result.output == "written: train.log.train (5 rows)\nno test outputs in train.log\ndrawn: log.png\n"
    result = run("parse-log", "train.log")
    assert result.exit_code == 2 and "give OUTDIR for tables, or --plot FILE.png for a picture" in result.output
    result = run("parse-log", "train.log", "--plot", "train.log")
    assert result.exit_code == 1 and "--plot train.log: this is an input" in result.output
    Path("none.log").write_text("I0101 00:00:01.000000  7 solver.cpp:3] Iteration 0, Testing net (#0)\n")
    result = run("parse-log", "none.log", "--plot", "log.png")
    assert result.exit_code == 1 and "none.log: no losses, rates or outputs to draw" in result.output


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_find_lr_proposes_a_rate_and_changes_nothing(folder: Path) -> None:
    solver = Path("solver.prototxt")
    solver.write_text(solver.read_text() + " snapshot: 1 display: 1 momentum: 0.9")
    before = files(folder)
    result = run(*TRAIN, "--find-lr", "--iterations", 40, "--lr-min", 1e-4, "--lr-max", 1e4)
    assert result.exit_code == 0, result.output
    assert "--find-lr: 40 iterations, the rate grows from 0.0001 to 10000" in result.output
    found = re.search(r"^the smoothed loss is least at the rate (\S+): ", result.stdout, re.MULTILINE)
    option, rate = result.stdout.splitlines()[-1].split()
    steepest = re.search(r"^the smoothed loss falls fastest at the rate (\S+)$", result.stdout, re.MULTILINE)
    assert found and steepest and option == "--lr"
    assert float(rate) == pytest.approx(min(float(steepest[1]), float(found[1]) / 10), rel=0.1)
    assert files(folder) == before
    result = run(*TRAIN, "--find-lr", "--iterations", 40, "--lr-min", 1e-4, "--lr-max", 1e4, "--plot", "rates.png")
    assert result.stdout.splitlines()[-1] == f"--lr {rate}"
    with Image.open("rates.png") as image:
        assert image.size == (1000, 520)
    Path("rates.png").unlink()
    assert files(folder) == before
    assert run(*TRAIN, "--lr", rate, "--iterations", 1).exit_code == 0


def test_find_lr_without_a_proposal_also_draws(folder: Path) -> None:
    result = run(*TRAIN, "--find-lr", "--iterations", 40, "--lr-max", 1e-5, "--plot", "rates.png")
    assert result.exit_code == 1 and result.stdout.splitlines()[-1] == "drawn: rates.png"
    with Image.open("rates.png") as image:
        assert image.size == (1000, 520)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--find-lr", "--out", "a.caffemodel"], "--out does nothing with --find-lr"),
        (["--find-lr", "--snapshot", "latest"], "--snapshot does nothing with --find-lr"),
        (["--find-lr", "--engine", "mpi"], "--engine does nothing with --find-lr"),
        (["--find-lr", "--check-finite"], "--check-finite does nothing with --find-lr"),
        (["--find-lr", "--csv", "a.csv"], "--csv does nothing with --find-lr"),
        (["--lr-max", "1"], "--lr-max does nothing without --find-lr"),
        (["--find-lr", "--iterations", "3"], "a learning rate range test needs at least 40 iterations, got 3"),
        (["--find-lr", "--lr-min", "2", "--lr-max", "1"], "the learning rates must grow from above 0, got 2 to 1"),
        (["--find-lr", "--iterations", "40", "--lr-max", "1e-5"], "or a higher last rate (--lr-max)"),
    ],
)
def test_find_lr_refuses(options: list[str], message: str) -> None:
    result = run(*TRAIN, *options)
    assert result.exit_code == 1 and message in result.output
