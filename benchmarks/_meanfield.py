"""MultiStageMeanfield's forward, and the same with the filters of lattice.cpp: one row of benchmarks/forks.py.

Like the original layer both make the spatial lattice once, and that of the image's colours in every pass; both multiply the
matrices with BLAS.
"""

from __future__ import annotations

import ctypes
import subprocess
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import minicaffe
from benchmarks._contenders import both, leave_out, nearly_all
from benchmarks._loop import library
from benchmarks._report import Row
from benchmarks._smoke import smoking, usual
from benchmarks._timing import interleaved
from minicaffe import TEST, Blob
from minicaffe.blob import Array
from minicaffe.data.images import resize_bilinear
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import create
from minicaffe.layers.loss.softmax import softmax

CLASSES, SIZE, ITERATIONS = 21, usual(500, 12), 10
NAME = f"MultiStageMeanfield, {CLASSES} x {SIZE} x {SIZE}, {ITERATIONS} iterations"
ALPHA, BETA, GAMMA = 160, 3, 3
"""As published."""

Run = Callable[[], Array]


def meanfield_row() -> Row:
    """Return the times of the layer, and of the loop if there is a g++; all compared first."""
    random = np.random.default_rng(0)
    scores = 3 * random.standard_normal((1, CLASSES, SIZE, SIZE), dtype=np.float32)
    patches = resize_bilinear(random.uniform(-120, 120, (9, 9, 3)).astype(np.float32), SIZE, SIZE)
    image = (patches + random.normal(0, 2, patches.shape)).transpose(2, 0, 1)[None].astype(np.float32)
    weights = np.diag(random.uniform(1, 5, CLASSES)) + random.normal(0, 0.1, (3, CLASSES, CLASSES))
    runs = both(lambda: {"forward": ours(scores, image, weights)})["forward"]
    runs |= {} if smoking() else loop(scores, image, weights)
    expected, *others = (run().copy() for run in runs.values())
    for found in others:
        nearly_all(NAME, found, expected, 1e-3)  # rounding decides which lattice points exist
    return Row((NAME, "forward", str(minicaffe.get_num_threads())), interleaved(runs, seconds=60, most=5))


def ours(scores: Array, image: Array, weights: Array) -> Run:
    """Return the layer on bottoms (1, C, H, W) and an image (1, 3, H, W), with the three matrices (3, C, C)."""
    thetas = f"theta_alpha: {ALPHA} theta_beta: {BETA} theta_gamma: {GAMMA}"
    kind = f'type: "MultiStageMeanfield" multi_stage_meanfield_param {{ num_iterations: {ITERATIONS} {thetas} }}'
    names = "".join(f' bottom: "{i}"' for i in range(3))
    layer = create(parse_net(f'layer {{ name: "crf"{names} top: "y" {kind} }}').param.layer[0], phase=TEST)
    layer.blobs = [Blob((1, 1, CLASSES, CLASSES)) for _ in weights]
    for blob, values in zip(layer.blobs, weights, strict=True):
        blob.data[0, 0] = values
    bottom, top = [Blob(array.shape) for array in (scores, scores, image)], [Blob()]
    for blob, array in zip(bottom, (scores, scores, image), strict=True):
        blob.data[...] = array
    layer.connect(bottom, top)

    def run() -> Array:
        layer.forward(bottom, top)
        return top[0].read_data()

    return run


def loop(scores: Array, image: Array, weights: Array) -> dict[str, Run]:
    """Return the same with lattice.cpp on one thread, by its name; empty without g++."""
    try:
        functions = ctypes.CDLL(str(library("lattice.cpp")))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        leave_out("C++ loop", error)
        return {}
    spatial, bilateral, compat = weights.astype(np.float32)
    unary = scores[0].reshape(CLASSES, -1)
    places = np.stack(np.indices(image.shape[2:], np.float32)[::-1])
    near = Filter(functions, places / np.float32(GAMMA))

    def run() -> Array:
        alike = Filter(functions, np.concatenate([places / np.float32(ALPHA), image[0] / np.float32(BETA)]))
        q = unary
        for _ in range(ITERATIONS):
            prob = softmax(q[None])[0]
            q = unary - compat @ (spatial @ near(prob) + bilateral @ alike(prob))
        return q.reshape(scores.shape)

    return {"C++ loop": run}


class Filter:
    """A lattice of features (d, H, W), called on values (C, pixels): filtered, over the filtered ones."""

    def __init__(self, functions: Any, features: Array) -> None:
        functions.lattice_new.restype = ctypes.c_void_p
        functions.lattice_new.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        functions.lattice_delete.argtypes = [ctypes.c_void_p]
        functions.lattice_filter.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        points = np.ascontiguousarray(features.reshape(len(features), -1).T)
        self.filter, self.lattice = functions.lattice_filter, functions.lattice_new(points.ctypes.data, *points.shape)
        weakref.finalize(self, functions.lattice_delete, self.lattice)
        self.norm: Array = np.float32(1)
        self.norm = 1 / (self(np.ones((1, len(points)), np.float32)) + np.float32(1e-20))

    def __call__(self, x: Array) -> Array:
        x, y = np.ascontiguousarray(x), np.empty_like(x, order="C")
        self.filter(self.lattice, x.ctypes.data, len(x), y.ctypes.data)
        y *= self.norm
        return y
