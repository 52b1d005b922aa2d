"""train with images that cannot be read, and with test nets that read a roidb or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import main

NET = """name: "boxes"
layer { name: "data" type: "RoIData" top: "data" top: "im_info" top: "gt_boxes"
  python_param { param_str: "'num_classes': 2" } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 1 kernel_size: 9 stride: 9 } }
layer { name: "loss" type: "Reduction" bottom: "conv" top: "loss" loss_weight: 1 }
layer { name: "rest" type: "Silence" bottom: "im_info" bottom: "gt_boxes" }
"""
SOLVER = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 9 '
COMMAND = ("train", "solver.prototxt", "--roidb", "roidb.json", "--cfg", "small.yml")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a solver, and five images in a roidb."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt"' + SOLVER)
    (tmp_path / "small.yml").write_text("TRAIN: {SCALES: [40], MAX_SIZE: 60, USE_FLIPPED: False}\n")
    pixels = np.random.default_rng(1).integers(0, 255, (40, 48, 3), np.uint8)
    for i in range(5):
        Image.fromarray(pixels).save(f"{i}.jpg", quality=95)
    images = [{"image": f"{i}.jpg", "boxes": [[1, 1, 20, 20]], "classes": ["square"]} for i in range(5)]
    (tmp_path / "roidb.json").write_text(json.dumps({"classes": ["square"], "images": images}))
    return tmp_path


def truncate(name: str) -> None:
    whole = Path(name).read_bytes()
    Path(name).write_bytes(whole[: len(whole) // 2])


def test_a_truncated_image_is_refused_before_the_first_iteration(folder: Path) -> None:
    truncate("3.jpg")
    Path("4.jpg").write_bytes(b"")
    result = run(*COMMAND)
    assert result.exit_code == 1 and "Solving" not in result.output
    assert "roidb.json: 2 of 5 images cannot be used:\n  3.jpg: cannot read the image: image file is truncated" in result.output
    assert not list(folder.glob("*.caffemodel"))


def test_the_others_are_trained_on_if_unreadable_ones_are_skipped(folder: Path) -> None:
    truncate("3.jpg")
    Path("4.jpg").write_bytes(b"")
    result = run(*COMMAND, "--skip-unreadable")
    assert result.exit_code == 0, result.output
    assert "2 of 5 images cannot be used and are left out:\n  3.jpg" in result.output
    assert "roidb.json: 3 images, 2 classes" in result.output
    assert (folder / "solver_iter_9.caffemodel").is_file()


def test_missing_images(folder: Path) -> None:
    Path("3.jpg").unlink()
    result = run(*COMMAND, "--no-check")
    ways = "(--images gives another folder, --skip-unreadable leaves them out)"
    assert result.exit_code == 1 and f"roidb.json: images missing: 1 of 5; . has no 3.jpg {ways}\n" in result.output
    result = run(*COMMAND, "--skip-unreadable")
    assert result.exit_code == 0 and "roidb.json: 4 images, 2 classes" in result.output, result.output


def test_without_the_check_the_error_leaves_a_snapshot(folder: Path) -> None:
    truncate("3.jpg")
    result = run(*COMMAND, "--no-check", "--seed", 1)
    assert result.exit_code == 1
    (state,) = folder.glob("*.solverstate")
    after = state.name.removeprefix("solver_iter_").removesuffix(".solverstate")
    saved = f"the state after {after} iterations is saved; to resume: train --snapshot"
    assert "3.jpg: cannot read the image: image file is truncated" in result.output and saved in result.output
    Image.fromarray(np.zeros((40, 48, 3), np.uint8)).save("3.jpg")
    result = run(*COMMAND, "--snapshot", state)
    assert result.exit_code == 0 and (folder / "solver_iter_9.caffemodel").is_file(), result.output


def test_skipping_needs_the_check() -> None:
    result = run(*COMMAND, "--no-check", "--skip-unreadable")
    assert result.exit_code == 2 and "--skip-unreadable needs the check: leave out --no-check" in result.output


def test_a_test_net_gets_the_roidb_too(folder: Path) -> None:
    (folder / "solver.prototxt").write_text('net: "net.prototxt" test_iter: 2 test_interval: 4 ' + SOLVER)
    result = run(*COMMAND)
    assert result.exit_code == 0, result.output
    assert result.output.count("Testing net (#0)") == 3 and "Test net output #0: loss = " in result.output


def test_a_deploy_net_cannot_test(folder: Path) -> None:
    inputs = 'layer { name: "in" type: "Input" top: "data" top: "im_info" input_param { shape { dim: 1 dim: 3 } } }\n'
    (folder / "test.prototxt").write_text(inputs)
    text = 'train_net: "net.prototxt" test_net: "test.prototxt" test_iter: 2 test_interval: 4 '
    (folder / "solver.prototxt").write_text(text + SOLVER)
    result = run(*COMMAND)
    assert result.exit_code == 1 and "Solving" not in result.output
    assert "test_net test.prototxt: no layer fills its inputs data, im_info, so the solver cannot test with it" in result.output
    assert "\n--val ANNOTATIONS --test-net test.prototxt" in result.output
