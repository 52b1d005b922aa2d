"""A folder with a small detector: the nets of examples/shapes, images to train on and others to validate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import main

RFCN = Path(__file__).parents[2] / "examples" / "shapes" / "rfcn"
NAMES = ["circle", "square", "triangle"]
CFG = """PIXEL_MEANS: [[[120.0, 120.0, 120.0]]]
TRAIN: {SCALES: [64], MAX_SIZE: 100, BATCH_SIZE: 16, BBOX_NORMALIZE_TARGETS_PRECOMPUTED: True, RPN_MIN_SIZE: 8}
TEST: {SCALES: [64], MAX_SIZE: 100, RPN_MIN_SIZE: 8}
"""
TRAIN = ("train", "solver.prototxt", "--roidb", "train.json", "--cfg", "small.yml")


def run(*arguments: object) -> Result:
    """Run minicaffe in this process."""
    return CliRunner().invoke(main, [str(a) for a in arguments])


def write_roidb(name: str, count: int, classes: list[str] = NAMES, seed: int = 1) -> None:
    """Write images of noise, each with a box of the first and one of the last class."""
    generator, images = np.random.default_rng(seed), []
    for i in range(count):
        file = f"{Path(name).stem}_{i}.png"
        Image.fromarray(generator.integers(0, 256, (60, 80, 3), np.uint8)).save(file)
        images.append({"image": file, "boxes": [[10, 20, 50, 50], [30, 5, 70, 40]], "classes": [classes[0], classes[-1]]})
    Path(name).write_text(json.dumps({"classes": classes, "images": images}))


def make_small_rfcn() -> None:
    """Write the nets, a solver of five iterations, two images to train on and three to validate into the working directory."""
    for name in ("train.prototxt", "test.prototxt"):
        shutil.copy(RFCN / name, name)
    Path("small.yml").write_text(CFG)
    Path("solver.prototxt").write_text(
        'train_net: "train.prototxt" base_lr: 0.01 lr_policy: "fixed" random_seed: 3 snapshot_prefix: "run" max_iter: 5'
    )
    write_roidb("train.json", 2)
    write_roidb("val.json", 3, seed=7)
