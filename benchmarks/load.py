"""Seconds until VGG16's weights (553 MB) are ready for a first forward, compared with OpenCV and with reading the bytes.

    python -m benchmarks load --threads 1 [--write]

Each run is a separate process, timed without imports; they take turns. The file is in the system's cache. minicaffe's time is
that of Net(prototxt, TEST, weights=...): reading the prototxt, making the net, copying the weights.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import minicaffe
from benchmarks._architectures import squeezenet, vgg16
from benchmarks._child import in_child
from benchmarks._contenders import leave_out
from benchmarks._report import Row, Table, options
from benchmarks._smoke import smoking, usual
from minicaffe.formats.prototxt import parse_net

ROUNDS = usual(7, 1)


def main(arguments: Sequence[str] = ()) -> None:
    given = options("load", __doc__ or "").parse_args(arguments)
    table = Table("load", ("weights", "threads"), ("minicaffe", "the file's bytes alone", "OpenCV"))
    functions = dict(zip(table.contenders, (load_minicaffe, read_bytes, *([] if smoking() else [load_opencv]))))
    with tempfile.TemporaryDirectory() as folder:
        in_child(make, folder)
        taken: dict[str, list[float]] = {name: [] for name in functions}
        for _ in range(ROUNDS + 1):
            for name, function in functions.items():
                seconds, _ = in_child(function, folder)
                if isinstance(seconds, str):
                    leave_out(name, ImportError(seconds))
                else:
                    taken[name].append(seconds)
    times = {name: statistics.median(each[1:]) for name, each in taken.items() if each}
    table.add(Row((usual("VGG16, 553 MB", "SqueezeNet"), str(given.threads)), times))
    if given.write:
        table.write()


def make(folder: str) -> None:
    """Write the prototxt and seeded random weights."""
    text = usual(vgg16(whole=True), squeezenet())
    (Path(folder) / "net.prototxt").write_text(text, encoding="utf-8")
    net, random = minicaffe.Net(parse_net(text), minicaffe.TEST), np.random.default_rng(0)
    for blob in net.learnable_params:
        random.standard_normal(out=blob.data, dtype=np.float32)
    net.save(Path(folder) / "net.caffemodel")


def load_minicaffe(folder: str) -> float:
    start = time.perf_counter()
    net = minicaffe.Net(f"{folder}/net.prototxt", minicaffe.TEST, weights=f"{folder}/net.caffemodel")
    seconds = time.perf_counter() - start
    first = np.random.default_rng(0).standard_normal(net.learnable_params[0].shape, dtype=np.float32)
    assert np.array_equal(net.learnable_params[0].data, first)
    return seconds


def read_bytes(folder: str) -> float:
    start = time.perf_counter()
    (Path(folder) / "net.caffemodel").read_bytes()
    return time.perf_counter() - start


def load_opencv(folder: str) -> float | str:
    try:
        import cv2
    except ImportError as error:
        return str(error)
    start = time.perf_counter()
    cv2.dnn.readNetFromCaffe(f"{folder}/net.prototxt", f"{folder}/net.caffemodel")
    return time.perf_counter() - start
