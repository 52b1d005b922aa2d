"""The starter nets: the published layouts, and that they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import SHARED, needs

from minicaffe import TEST, TRAIN, Net, get_solver
from minicaffe.data.roidb_entry import Entry, Roidb
from minicaffe.data.settings import read_settings
from minicaffe.detection.families import family_of
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.mode import Phase
from minicaffe.starters import STARTERS, files_of
from minicaffe.training.solver import SGDSolver

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
NAMES = ["circle", "square", "triangle"]
SSDS = ["ssd", "mobilenet-ssd"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def layout(net: Net) -> list[tuple[Any, ...]]:
    """Name, type, bottoms, tops and shapes of weights of each layer but the data layers, sorted by name."""
    found = []
    for layer in net.layers:
        if net.bottom_names[layer.name] and layer.type != "Split":
            names = (net.bottom_names[layer.name], net.top_names[layer.name])
            bottoms, tops = ([name.partition("_split_")[0] for name in some] for some in names)
            found.append((layer.name, layer.type, bottoms, tops, [blob.shape for blob in layer.blobs]))
    return sorted(found)


def made(detector: str, names: list[str], phase: Phase) -> Net:
    for name, text in files_of(detector, names).items():
        Path(name).write_text(text)
    settings = read_settings(f"{detector}.yml") if Path(f"{detector}.yml").exists() else None
    return Net("train.prototxt" if phase == TRAIN else "test.prototxt", phase, settings=settings)


@pytest.mark.parametrize(("phase", "file"), [(TRAIN, "train.prototxt"), (TEST, "test.prototxt")])
def test_the_r_fcn_is_that_of_the_shapes(phase: Phase, file: str) -> None:
    theirs = layout(Net(SHAPES / "rfcn" / file, phase, settings=read_settings(SHAPES / "shapes.yml")))
    ours = layout(made("rfcn", NAMES, phase))
    # Theirs has an Accuracy, and so a Split before the loss.
    assert [one for one in theirs if one[0] not in ("accuracy", "loss")] == [one for one in ours if one[0] != "loss"]


@pytest.mark.parametrize(("phase", "file"), [(TRAIN, "train.prototxt"), (TEST, "test.prototxt")])
@needs(SHARED / "models/py-faster-rcnn")
def test_zf_has_the_published_layout(phase: Phase, file: str) -> None:
    published = SHARED / "models/py-faster-rcnn/pascal_voc/ZF/faster_rcnn_end2end" / file
    names = [f"class{k}" for k in range(20)]
    assert layout(Net(published, phase)) == layout(made("zf", names, phase))


@needs(SHARED / "wild/chuanqi305__MobileNet-SSD")
def test_mobilenet_ssd_has_the_published_layout() -> None:
    published = layout(Net(SHARED / "wild/chuanqi305__MobileNet-SSD/train.prototxt", TRAIN))
    assert published == layout(made("mobilenet-ssd", [f"class{k}" for k in range(20)], TRAIN))


@pytest.mark.parametrize("detector", STARTERS)
def test_a_snapshot_fits_the_test_net(detector: str) -> None:
    net, test = made(detector, NAMES, TRAIN), made(detector, NAMES, TEST)
    assert {name: [b.shape for b in blobs] for name, blobs in net.params.items()} == {
        name: [b.shape for b in blobs] for name, blobs in test.params.items()
    }
    assert family_of(test).classes(test).number == 4


def scenes(count: int) -> Roidb:
    """Grey images with one or two bright squares each."""
    random, entries = np.random.default_rng(3), Roidb()
    for _ in range(count):
        pixels = random.normal(90, 10, (96, 128, 3)).clip(0, 255).astype(np.uint8)
        boxes = []
        for at in range(1 + int(random.integers(2))):
            side, top = int(random.integers(24, 56)), int(random.integers(0, 40))
            left = 64 * at + int(random.integers(0, 64 - side))
            pixels[top : top + side, left : left + side] = (40, 200, 250)
            boxes.append([left, top, left + side - 1, top + side - 1])
        entries.append(Entry(image=pixels, boxes=np.array(boxes), gt_classes=np.full(len(boxes), 2)))
    return entries


def solver_of(detector: str, iterations: int) -> SGDSolver:
    """The starter's solver, with smaller images or batches and a rate for few iterations."""
    made(detector, NAMES, TEST)
    train, settings = Path("train.prototxt").read_text(), None
    if detector not in SSDS:
        settings = read_settings(f"{detector}.yml")
        settings = replace(settings, train=replace(settings.train, scales=(96,), max_size=128))
    Path("train.prototxt").write_text(train.replace("batch_size: 8", "batch_size: 4"))
    solver = Path("solver.prototxt").read_text().replace("warmup_iter: 200", "warmup_iter: 0")
    Path("solver.prototxt").write_text(solver.replace(f"max_iter: {STARTERS[detector].iterations}", f"max_iter: {iterations}"))
    made_solver = get_solver("solver.prototxt", settings=settings, seed=1)
    reader: Any = made_solver.net.layers[0]
    reader.set_roidb(scenes(12))
    assert isinstance(reader, AnnotatedData) == (detector in SSDS)
    return made_solver


@pytest.mark.parametrize("detector", ["ssd", "rfcn"])
def test_the_loss_falls(detector: str) -> None:
    falls(detector, 12)


@pytest.mark.slow
@pytest.mark.parametrize("detector", ["zf", "mobilenet-ssd"])
def test_the_loss_of_a_large_net_falls(detector: str) -> None:
    falls(detector, 12)


def falls(detector: str, iterations: int) -> None:
    solver = solver_of(detector, iterations)
    losses = []
    for _ in range(iterations):
        solver.step(1)
        losses.append(sum(float(solver.net.blobs[name].data) for name in solver.net.outputs if "loss" in name))
    assert np.isfinite(losses).all() and np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
