"""A training with all its options, interrupted and resumed, ends with the files and numbers of the uninterrupted one."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from first import first
from small_rfcn import make_small_rfcn, run, write_roidb

from minicaffe.cli.train_validation import Lines
from minicaffe.training.snapshots import read_state

SOLVER = """train_net: "train.prototxt" base_lr: 0.01 lr_policy: "poly" power: 1 momentum: 0.9 random_seed: 3 average_loss: 3
snapshot_prefix: "run" snapshot: 4 display: 1
"""
OPTIONS = (
    "train", "solver.prototxt", "--roidb", "train.json", "--val", "val.json", "--val-every", 3, "--patience", 2, "--keep", 2,
    "--film", "film", "--every", 4,
)  # fmt: skip
HEADS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 8 kernel_size: 5 stride: 4 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "loc" type: "Convolution" bottom: "conv" top: "loc"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "loc_perm" type: "Permute" bottom: "loc" top: "loc_perm" permute_param { order: [0, 2, 3, 1] } }
layer { name: "loc_flat" type: "Flatten" bottom: "loc_perm" top: "loc_flat" }
layer { name: "conf" type: "Convolution" bottom: "conv" top: "conf"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "conf_perm" type: "Permute" bottom: "conf" top: "conf_perm" permute_param { order: [0, 2, 3, 1] } }
layer { name: "prior" type: "PriorBox" bottom: "conv" bottom: "data" top: "prior"
  prior_box_param { min_size: 30 variance: [0.1, 0.1, 0.2, 0.2] } }
"""
SSD_TRAIN = (
    """layer { name: "in" type: "AnnotatedData" top: "data" top: "label" data_param { batch_size: 2 }
  transform_param { mean_value: 100 scale: 0.02 mirror: true resize_param { height: 48 width: 64 }
    distort_param { brightness_prob: 0.5 brightness_delta: 32 hue_prob: 0.5 hue_delta: 18 }
    expand_param { prob: 0.5 max_expand_ratio: 2 } emit_constraint { emit_type: CENTER } }
  annotated_data_param { batch_sampler { max_sample: 1 max_trials: 1 } batch_sampler { sampler { min_scale: 0.5 }
    sample_constraint { min_jaccard_overlap: 0.3 } max_sample: 1 max_trials: 9 } } }"""
    + HEADS
    + """layer { name: "conf_flat" type: "Flatten" bottom: "conf_perm" top: "conf_flat" }
layer { name: "loss" type: "MultiBoxLoss" bottom: "loc_flat" bottom: "conf_flat" bottom: "prior" bottom: "label" top: "loss"
  multibox_loss_param { num_classes: 4 code_type: CENTER_SIZE overlap_threshold: 0.3 } }"""
)
SSD_TEST = (
    'input: "data" input_shape { dim: 1 dim: 3 dim: 48 dim: 64 }'
    + HEADS
    + """layer { name: "scores" type: "Reshape" bottom: "conf_perm" top: "scores" reshape_param { shape { dim: [0, -1, 4] } } }
layer { name: "prob" type: "Softmax" bottom: "scores" top: "prob" softmax_param { axis: 2 } }
layer { name: "conf_flat" type: "Flatten" bottom: "prob" top: "conf_flat" }
layer { name: "found" type: "DetectionOutput" bottom: "loc_flat" bottom: "conf_flat" bottom: "prior" top: "found"
  detection_output_param { num_classes: 4 code_type: CENTER_SIZE nms_param { nms_threshold: 0.45 } keep_top_k: 50
    confidence_threshold: 0.01 } }"""
)
RFCN_OPTIONS = ("--cfg", "small.yml", "--epochs", 2, "--augment", "distort,channel_order,expand=2,crop=0.5")
CASES = {"rfcn": RFCN_OPTIONS, "ssd": ("--epochs", 6)}


def make(kind: str, folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    make_small_rfcn()
    Path("solver.prototxt").write_text(SOLVER)
    write_roidb("train.json", 4)
    write_roidb("val.json", 2, seed=7)
    if kind == "ssd":
        Path("train.prototxt").write_text(SSD_TRAIN)
        Path("test.prototxt").write_text(SSD_TEST)


def printed(output: str) -> list[str]:
    """Return the numbers of the iterations, without the speed."""
    return [re.sub(r"  [\d.]+ it/s", "", line) for line in output.splitlines() if line.startswith("iteration ")]


def film() -> tuple[dict[int, object], dict[str, list[float | None]], list[object]]:
    """Return the frames without losses and tests, all losses, and all tests."""
    from minicaffe.tracing.film_frames import frame_files, read_frame

    frames = {at: read_frame(file) for at, file in frame_files("film").items()}
    losses: dict[str, list[float | None]] = {}
    for frame in frames.values():
        for name, values in [("iteration", frame.iterations), *frame.losses.items()]:
            losses.setdefault(name, []).extend(values)
    tests = [test for frame in frames.values() for test in frame.tests]
    return {at: replace(frame, iterations=[], losses={}, tests=[]) for at, frame in frames.items()}, losses, tests


@pytest.mark.parametrize(
    ("kind", "method", "call"),
    first(1, [("ssd", "progress", 7), ("rfcn", "progress", 5), ("rfcn", "image", 3)]),
    ids=["an SSD", "an R-FCN", "an R-FCN while it validates"],
)
def test_resumed_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, method: str, call: int) -> None:
    """The interruption is after iteration 5 or 7, or after 1 of 2 images of the second validation."""
    monkeypatch.chdir(tmp_path)
    options = (*OPTIONS, *CASES[kind])
    make(kind, tmp_path / "whole")
    whole = run(*options)
    assert whole.exit_code == 0, whole.output
    frames, losses, tests = film()
    last = max(frames)

    make(kind, tmp_path / "halves")
    calls, original = 0, getattr(Lines, method)

    def interrupted(self: Lines, *arguments: object) -> None:
        nonlocal calls
        original(self, *arguments)
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Lines, method, interrupted)
    first = run(*options)
    assert first.exit_code == 130 and len(printed(first.output)) < len(printed(whole.output)), first.output
    second = run(*options, "--snapshot", "latest")
    assert second.exit_code == 0 and "going on from run_iter_" in second.output, second.output

    assert printed(first.output) + printed(second.output) == printed(whole.output)
    assert second.output.splitlines()[-2] == whole.output.splitlines()[-2]
    assert "best: run_best.caffemodel" in whole.output
    for name in ("run_best.caffemodel", f"run_iter_{last}.caffemodel"):
        assert Path(name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    states = [read_state(folder / f"run_iter_{last}.solverstate") for folder in (tmp_path / "whole", tmp_path / "halves")]
    for a, b in zip(*(state.history for state in states), strict=True):
        np.testing.assert_array_equal(a, b)
    more, same_losses, same_tests = film()
    assert {at: more[at] for at in frames} == frames and len(more) <= len(frames) + 1
    assert same_losses == losses and same_tests == tests and len(tests) > 2
    assert {path.name for path in Path().glob("run_*")} == {path.name for path in (tmp_path / "whole").glob("run_*")}
