"""Runs for tests/replay.py: a net of each family of detectors, and the text and files that commands give."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from detecting import make_folder
from detector_nets import BLOB, CASCADE, CELLS, CTPN, MSCNN, REFINEDET, SSD, SSH, YOLOS, pooled, reshaped, squeeze_det
from golden import inside
from people_maps import maps_of, standing
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import COMMANDS, main
from minicaffe.data.settings import settings_from
from minicaffe.detection import load
from minicaffe.detection.pose import COCO

Values = dict[str, Any]
UNSTEADY = re.compile(r" *\b\d+\.\d+ (s|ms|images/s)\b|written by: .*")
SILENT = ("run", "test", "time", "device-query", "doctor", "docs", "train", "port")
"""Commands whose text depends on the machine or the clock: their exit status and files are recorded."""
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = "input: 'data' input_shape {{ dim: 1 dim: 3 dim: {0} dim: {0} }} "
INNER = 'layer {{ name: "fc" type: "InnerProduct" bottom: "{0}" top: "fc" inner_product_param {{ num_output: {1} }} }}'
FOUND = 'layer {{ name: "found" bottom: "cells" top: "found" {} }}'
SMALL = {"SCALES": [96], "MAX_SIZE": 160}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "ssd": (SSD, {}),
    "refinedet": (REFINEDET, {}),
    **{f"yolo_{i}": (f"{BLOB} {CELLS} {FOUND.format(end)}", {}) for i, end in enumerate(YOLOS.values())},
    "yolo1_map": (DATA.format(448) + pooled(64, 30) + reshaped(1470), {}),
    "yolo1_cells": (DATA.format(448) + pooled(64, 3) + INNER.format("cells", 1470), {}),
    "yolo2": (DATA.format(64) + pooled(32, 14), {"ANCHORS": [1, 0.5, 2, 2]}),
    "mscnn": (DATA.format(64) + MSCNN, {}),
    "squeeze_det": (DATA.format(60) + squeeze_det(30, 2, 2, 4), {"ANCHORS": [8, 8, 20, 10]}),
    "cascade": (CASCADE, SMALL),
    "ctpn": (CTPN, SMALL),
    "ssh": (SSH, {"SCALES": [48], "MAX_SIZE": 64}),
    "ssh_pyramid": (SSH, {"SCALES": [16, 32, 48], "MAX_SIZE": 64}),
}
"""A net of each family, and its TEST settings."""
INPUT = 'input: "{}" input_shape {{ dim: 1 dim: 3 dim: 12 dim: 20 }} '
PAIR = f"""{INPUT.format("img0")} {INPUT.format("img1")}
layer {{ name: "less" type: "Eltwise" bottom: "img1" bottom: "img0" top: "less" eltwise_param {{ coeff: 1 coeff: -1 }} }}
layer {{ name: "flow" type: "Convolution" bottom: "less" top: "flow" convolution_param {{ num_output: 2 kernel_size: 1 }} }}"""
PROB = 'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }'
POSE = 'layer {{ name: "maps" type: "Parameter" top: "maps" parameter_param {{ shape {{ {} }} }} }}'
GIVEN = ("", "--threshold 1 --json", "--rgb --mean 90,100,110", "--nms 0.5", "--scale 64", "--scale-factor 2", "--draw out")
LINES = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()


def command_runs(folder: Path) -> Iterator[tuple[str, Callable[[], Values]]]:
    """Yield each run's name and the function that computes its values, in a copy of one folder."""
    make_files(folder / "files")
    lines = [*(f"{name} --help" for name in COMMANDS), "--help", *LINES]
    for family, (_, settings) in FAMILIES.items():
        yield family, lambda family=family: of_copy(folder, lambda: of_family(family))
        anchors = f" --anchors {','.join(map(str, settings['ANCHORS']))}" if "ANCHORS" in settings else ""
        lines += [f"detect {family}.prototxt {family}.caffemodel photo.png --threshold 0 {more}{anchors}" for more in GIVEN]
    for line in lines:
        yield line, lambda line=line: of_copy(folder, lambda: of_command(line))


def make_files(folder: Path) -> None:
    """Write nets of all kinds with random weights, photos, and the repository's examples."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    with inside(folder):
        make_folder(Path())
        for name, size in (("photo.png", (40, 60, 3)), ("second.png", (40, 60, 3)), ("wide.png", (50, 90, 3))):
            Image.fromarray(random.integers(0, 256, size, np.uint8)).save(name)
        maps = maps_of(COCO, [standing(COCO, 90, 40), standing(COCO, 240, 50, 0.9)], 240, 400)
        texts = {name: text for name, (text, _) in FAMILIES.items()}
        texts |= {"pair": PAIR, "classify": DATA.format(8) + INNER.format("data", 9) + PROB}
        texts["pose"] = DATA.format(8) + POSE.format(" ".join(f"dim: {side}" for side in (1, *maps.shape)))
        for name, text in texts.items():
            Path(f"{name}.prototxt").write_text(text, encoding="utf-8")
            net = Net(f"{name}.prototxt", TEST, settings=settings_from({"TEST": FAMILIES.get(name, ("", {}))[1]}))
            for layer, blobs in net.params.items():
                for blob in blobs:
                    blob.data[...] = maps if layer == "maps" else 0.01 * random.standard_normal(blob.shape)
            if name == "ssd":
                net.params["conf"][1].data[...] = [0.9, 0.05, 0.9]
            net.save(f"{name}.caffemodel")
        Path("list.txt").write_text("photo.png 1\nsecond.png 2\n", encoding="utf-8")


def of_copy(folder: Path, run: Callable[[], Values]) -> Values:
    shutil.rmtree(folder / "copy", ignore_errors=True)
    with inside(shutil.copytree(folder / "files", folder / "copy")):
        return run()


def of_family(family: str) -> Values:
    """Return the detections of a photo."""
    detector = load(f"{family}.prototxt", f"{family}.caffemodel", {"TEST": s} if (s := FAMILIES[family][1]) else None)
    detector.threshold = 0.01
    found = vars(detector("photo.png"))
    return {name: np.asarray(value) for name, value in found.items() if value is not None and name != "best"}


def of_command(line: str) -> Values:
    """Return the exit status, the text and the new files of a command line."""
    before, words = set(Path().iterdir()), line.split()
    result = CliRunner().invoke(main, words)
    text = UNSTEADY.sub("", result.output).replace(str(Path.cwd()), ".")
    found: Values = {"exit": str(result.exit_code), "text": "" if words[0] in SILENT and "--help" not in words else text}
    if result.exception and not isinstance(result.exception, SystemExit):
        found["exception"] = repr(result.exception)
    for path in sorted(path for new in set(Path().iterdir()) - before for path in (new, *new.rglob("*"))):
        if path.is_file() and path.suffix not in (".parquet", ".mdb", ".lock", ".html"):
            found[str(path)] = np.frombuffer(path.read_bytes(), np.uint8)
    return found
