"""train --augment: what it prints and changes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_rfcn import CFG, TRAIN, make_small_rfcn, run

from minicaffe import get_solver
from minicaffe.data.roidb import add_flipped, load_roidb
from minicaffe.data.settings import read_settings
from minicaffe.training.solver import SGDSolver


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_small_rfcn()
    return tmp_path


def trained(*options: str) -> bytes:
    result = run(*TRAIN, "--iterations", 2, "--out", "out.caffemodel", *options)
    assert result.exit_code == 0, result.output
    return Path("out.caffemodel").read_bytes()


def test_the_option_the_yml_and_python_do_the_same() -> None:
    plain = trained()
    assert trained("--augment", "distort=0,expand=1,crop=1") == plain
    by_option = trained("--augment", "expand=2,crop")
    assert by_option != plain
    Path("small.yml").write_text(CFG.replace("TRAIN: {", "TRAIN: {EXPAND: 2, CROP: 0.3, "))
    assert trained() == by_option
    assert trained("--augment", "expand=1,crop=1") == plain
    solver: SGDSolver = get_solver("solver.prototxt", settings=read_settings("small.yml"))
    solver.net.layers[0].set_roidb(add_flipped(load_roidb("train.json")[0]))  # type: ignore[attr-defined]
    solver.step(2)
    solver.save("python.caffemodel")
    assert Path("python.caffemodel").read_bytes() == by_option


def test_the_parts_are_printed() -> None:
    result = run(*TRAIN, "--iterations", 1, "--augment", "distort,channel_order, crop=0.5")
    assert result.exit_code == 0
    assert "\naugmentation: distort 1, channel_order 0.5, crop 0.5\n" in result.output
    assert "\naugmentation: none\n" in run(*TRAIN, "--iterations", 1, "--augment", "crop=1").output
    assert "augmentation" not in run(*TRAIN, "--iterations", 1).output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("distrot", '"distrot" is not one of distort, channel_order, expand, crop; did you mean distort?'),
        ("crop,", '"" is not one of distort, channel_order, expand, crop'),
        ("expand=wide", '"wide" is not a number: write expand=4'),
        ("expand=0.5", "TRAIN.EXPAND must be from 1 to 100, got 0.5"),
        ("crop=nan", "TRAIN.CROP must be finite, got nan"),
    ],
)
def test_what_is_refused(given: str, message: str) -> None:
    result = run(*TRAIN, "--augment", given)
    assert result.exit_code == 1 and f"--augment {given}: {message}" in result.stderr


def test_an_ssd_is_augmented_by_its_prototxt(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("names.txt").write_text("circle\nsquare\ntriangle\n")
    result = run("new", "ssd", "detector", "--classes", "names.txt")
    assert result.exit_code == 0, result.output
    monkeypatch.chdir("detector")
    options = ("train", "solver.prototxt", "--roidb", "../train.json", "--iterations", 1)
    result = run(*options, "--augment", "crop=1")
    wanted = 'is RoIData; layer "data" (AnnotatedData) augments by its transform_param and batch_sampler: change these'
    assert result.exit_code == 1 and "--augment crop=1: has no effect, because no layer of " in result.stderr
    assert wanted in result.stderr
    Path("small.yml").write_text("TRAIN: {EXPAND: 2}")
    result = run(*options, "--cfg", "small.yml")
    assert result.exit_code == 1 and "small.yml: TRAIN.EXPAND has no effect, because no layer of " in result.stderr
