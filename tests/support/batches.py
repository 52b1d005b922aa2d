"""Data layers: the golden data's batches, databases and images to read, and the two guarantees of every one that prefetches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from golden import GOLDEN, compare, inside
from numpy.typing import NDArray
from PIL import Image

from minicaffe import Net, set_random_seed
from minicaffe.data.database import new_database
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST, Phase
from minicaffe.proto import caffe_pb2


def run_batches(case: str, atol: float = 1e-5, **arrays: str) -> int:
    """Compare every batch of a data layer's golden case; returns the number of arrays. arrays: the keys to feed first."""
    path = GOLDEN / f"{case}.prototxt"
    stored = np.load(path.with_suffix(".npz"))
    compared = 0
    with inside(path.parent):
        net = Net(path.name, Phase(int(stored["phase"])))
        if arrays:
            net.set_input_arrays(*(stored[key] for key in arrays.values()))
        for batch in range(1 + max(int(key.rpartition("batch")[2]) for key in stored.files if ".batch" in key)):
            net.forward()
            for name, blob in net.blobs.items():
                compare(blob.data, stored[f"top.{name}.batch{batch}"], (0.0, atol), f"{case} {name} batch {batch}")
                compared += 1
    return compared


def net_of(text: str, phase: Phase = TEST, seed: int = 1) -> Net:
    """Return a net of this text, with random numbers from seed."""
    set_random_seed(seed)
    return Net(parse_net(text, file="data.prototxt"), phase)


def batches(net: Net, count: int) -> list[list[NDArray[Any]]]:
    """Return the tops of `count` forward passes."""
    taken = []
    for _ in range(count):
        net.forward()
        taken.append([blob.data.copy() for blob in net.blobs.values()])
    return taken


def check_repeats_and_resumes(text: str, phase: Phase, count: int = 5) -> None:
    """Check that a seed repeats the batches, and that a state, through JSON, resumes them in a net with another seed."""
    straight = batches(net_of(text, phase), 2 * count)
    first = net_of(text, phase)
    assert same(batches(first, count), straight[:count])
    state = json.loads(json.dumps(first.layers[0].training_state()))
    for taken in (0, 2):  # with the thread that prefetches, the source may already be at `count`
        other = net_of(text, phase, seed=77)
        batches(other, taken)
        other.layers[0].restore_training_state(state)
        assert other.layers[0].training_state() == state
        assert same(batches(other, count), straight[count:])
    assert same(batches(first, count), straight[count:])


def same(one: list[list[NDArray[Any]]], other: list[list[NDArray[Any]]]) -> bool:
    """Return whether two lists of batches are equal, bit for bit."""
    return [[a.tobytes() for a in batch] for batch in one] == [[a.tobytes() for a in batch] for batch in other]


def image(seed: int, height: int = 5, width: int = 7) -> NDArray[np.uint8]:
    """Random pixels (H, W, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_images(folder: Path, count: int, **size: int) -> list[str]:
    """PNGs of image(0), image(1), ... in folder; their names."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        Image.fromarray(image(i, **size)).save(folder / f"im{i}.png")
    return [f"im{i}.png" for i in range(count)]


def make_database(path: str, datums: list[caffe_pb2.Datum], backend: str = "lmdb") -> None:
    """Make a database of datums with the keys 00000000, 00000001, ..."""
    with new_database(path, backend) as database:
        for i, datum in enumerate(datums):
            database.put(f"{i:08d}".encode(), datum.SerializeToString())


def datum(i: int, channels: int = 2, height: int = 4, width: int = 6) -> caffe_pb2.Datum:
    """Random bytes, of label 10 + i."""
    pixels = np.random.default_rng(i).integers(0, 256, (channels, height, width), dtype=np.uint8)
    return caffe_pb2.Datum(channels=channels, height=height, width=width, data=pixels.tobytes(), label=10 + i)
