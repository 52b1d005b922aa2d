"""train --val: the test net that it finds, what it prints, the files that it keeps, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_rfcn import NAMES, RFCN, TRAIN, make_small_rfcn, run, write_roidb

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
    missing = f"val.json: images missing: {len(list(Path('photos').iterdir()))} of "
    assert result.exit_code == 1 and missing in result.output and "(--val-images gives another folder" in result.output
    result = run(*TRAIN, "--val", "val.json", "--val-images", "photos", "--iterations", 1)
    assert result.exit_code == 0, result.output
    write_roidb("val.json", 1, ["triangle", "square", "circle"])  # the same classes in another order
    result = run(*TRAIN, "--val", "val.json", "--iterations", 1)
    assert result.exit_code == 0, result.output
    write_roidb("val.json", 1, ["circle", "star"])
    result = run(*TRAIN, "--val", "val.json", "--iterations", 1)
    assert result.exit_code == 1 and "its classes are circle, star; the names given are circle, square, tri" in result.output


def write_voc(images: list[dict[str, Any]]) -> None:
    for name in ("Annotations", "ImageSets/Main"):
        (Path("voc") / name).mkdir(parents=True)
    shutil.copytree("photos", "voc/JPEGImages")
    for one in images:
        objects = ""
        for (x1, y1, x2, y2), name in zip(one["boxes"], one["classes"], strict=True):
            box = f"<xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin><xmax>{x2 + 1}</xmax><ymax>{y2 + 1}</ymax>"
            objects += f"<object><name>{name}</name><bndbox>{box}</bndbox></object>"
        size = "<size><width>80</width><height>60</height></size>"
        Path("voc/Annotations", one["image"]).with_suffix(".xml").write_text(f"<annotation>{size}{objects}</annotation>")
    Path("voc/ImageSets/Main/test.txt").write_text("".join(f"{Path(one['image']).stem}\n" for one in images))


def write_yolo(images: list[dict[str, Any]]) -> None:
    shutil.copytree("photos", "yolo/images/val")
    Path("yolo/labels/val").mkdir(parents=True)
    for one in images:
        lines = ""
        for (x1, y1, x2, y2), name in zip(one["boxes"], one["classes"], strict=True):
            x, y, wide, high = (x1 + x2 + 1) / 160, (y1 + y2 + 1) / 120, (x2 - x1 + 1) / 80, (y2 - y1 + 1) / 60
            lines += f"{NAMES.index(name)} {x} {y} {wide} {high}\n"
        Path("yolo/labels/val", one["image"]).with_suffix(".txt").write_text(lines)
    Path("yolo/classes.txt").write_text("\n".join(NAMES))


def write_csv(images: list[dict[str, Any]]) -> None:
    rows = [
        f"photos/{one['image']},{','.join(map(str, box))},{name}\n"
        for one in images
        for box, name in zip(one["boxes"], one["classes"], strict=True)
    ]
    Path("val.csv").write_text("".join(["image,xmin,ymin,xmax,ymax,class\n", *rows]))


def test_the_same_boxes_in_other_formats_give_the_same_numbers(folder: Path) -> None:
    images = json.loads(Path("val.json").read_text())["images"]
    Path("photos").mkdir()
    for one in images:
        shutil.copy(one["image"], "photos")
    write_voc(images)
    write_yolo(images)
    write_csv(images)
    lines = set()
    for source in ("val.json", "voc", "yolo", "val.csv"):
        result = run(*TRAIN, "--val", source, "--iterations", 1)
        assert result.exit_code == 0 and f"{source}: 3 images for validation with test.prototxt" in result.output, result.output
        lines |= set(re.findall(r"^iteration 1: voc_ap .*", result.output, re.MULTILINE))
    assert len(lines) == 1
    Path("voc/ImageSets/Main/test.txt").rename("voc/ImageSets/Main/default.txt")  # as CVAT calls it
    result = run(*TRAIN, "--val", "voc", "--iterations", 1)
    assert result.exit_code == 1 and "these splits: default (--val-split NAME selects one)\n" in result.output


FAST = """layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 5 stride: 4 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 3 pooled_w: 3 spatial_scale: 0.25 } }
layer { name: "cls_score" type: "InnerProduct" bottom: "pool" top: "cls_score"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "bbox_pred" type: "InnerProduct" bottom: "pool" top: "bbox_pred"
  inner_product_param { num_output: 16 weight_filler { type: "gaussian" std: 0.001 } } }
"""
FAST_TRAIN = (
    """layer { name: "in" type: "RoIData" top: "data" top: "rois" top: "labels" top: "targets" top: "inside" top: "outside"
  python_param { param_str: "'num_classes': 4" } }"""
    + FAST
    + """layer { name: "loss" type: "SoftmaxWithLoss" bottom: "cls_score" bottom: "labels" top: "loss" }
layer { name: "box_loss" type: "SmoothL1Loss" bottom: "bbox_pred" bottom: "targets" bottom: "inside" bottom: "outside"
  top: "box_loss" loss_weight: 1 }"""
)
FAST_TEST = (
    'input: "data" input_shape { dim: [1, 3, 64, 85] } input: "rois" input_shape { dim: [1, 5] }'
    + FAST
    + 'layer { name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }'
)


def test_a_fast_rcnn_with_proposals(folder: Path) -> None:
    """The augmentation moves the proposals of the training; those of the validation stay."""
    Path("train.prototxt").write_text(FAST_TRAIN)
    Path("test.prototxt").write_text(FAST_TEST)
    Path("boxes").mkdir()
    random = np.random.default_rng(2)
    for path in (*folder.glob("train_*.png"), *folder.glob("val_*.png")):
        low = random.integers(0, 40, (50, 2))
        np.save(f"boxes/{path.stem}.npy", np.column_stack([low, low + random.integers(10, 20, (50, 2))]))
    options = (*TRAIN, "--proposals", "boxes", "--val", "val.json", "--val-every", 2)
    ends = []
    for more in ((), ("--augment", "distort,expand=2,crop=0.3")):
        result = run(*options, *more, "--out", "out.caffemodel")
        assert result.exit_code == 0, result.output
        assert re.findall(r"^iteration (\d): voc_ap 0\.[\d]+", result.output, re.MULTILINE) == ["2", "4", "5"]
        ends.append(Path("out.caffemodel").read_bytes())
    assert ends[0] != ends[1]
    result = run("evaluate", "test.prototxt", "run_best.caffemodel", "val.json", "--cfg", "small.yml", "--proposals", "boxes")
    assert result.exit_code == 0, result.output
    Path("boxes/val_1.npy").unlink()
    result = run(*options)
    assert result.exit_code == 1 and "val_1" in result.stderr, result.output
    np.save("boxes/val_1.npy", np.zeros((0, 4)))
    result = run(*options)
    assert result.exit_code == 1, result.output
    assert "--val val.json: test.prototxt takes rois, but val_1.png has no proposals to validate with" in result.stderr


def test_a_warning_for_images_that_are_trained_on(folder: Path) -> None:
    result = run(*TRAIN, "--val", "train.json", "--iterations", 1)
    assert "WARNING: train.json: 2 of 2 images are also trained on" in result.output


def test_what_is_refused(folder: Path) -> None:
    Path("empty.json").write_text('{"classes": ["circle", "square", "triangle"], "images": []}')
    result = run(*TRAIN, "--val", "empty.json")
    assert result.exit_code == 1 and "--val empty.json: the 0 images to validate have no boxes, " in result.output
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
