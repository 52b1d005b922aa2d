"""Layers of a weights file that nearly match a net's, for the error if no layer has the right name."""

from __future__ import annotations

import re
from collections import defaultdict

from minicaffe.errors import first_of, nearest
from minicaffe.formats.caffemodel import LayerWeights
from minicaffe.formats.weights import WeightsFile
from minicaffe.net import Net

LEAST = 0.5
"""The least similarity (of 1) of two names of layers with the same shapes."""
MOST = 50
"""The most layers of the net and of the file to compare whose names differ in more than case, punctuation and prefix."""


def suggest_layers(net: Net, file: WeightsFile) -> list[tuple[str, str]]:
    """Return pairs (the net's name, the file's) of layers with equal blob shapes and similar names, each used once.

    If all shapes agree in order, all layers are paired.
    """
    stored = [layer for layer in file.layers if any(layer.blobs)]
    names = [name for name, blobs in net.params.items() if blobs]
    if len(stored) == len(names) and all(_fits(net, name, layer) for name, layer in zip(names, stored)):
        return [(name, layer.name) for name, layer in zip(names, stored)]
    by_word: dict[str, list[LayerWeights]] = defaultdict(list)
    for layer in reversed(stored):
        by_word[_word(layer.name)].append(layer)  # reversed: pop() takes the first in the file
    pairs: dict[str, str] = {}
    for name in names:
        same = by_word[_word(name)]
        if same and _fits(net, name, same[-1]):
            pairs[name] = same.pop().name
    left = {word: layers[-1] for word, layers in by_word.items() if layers}
    for name in [name for name in names if name not in pairs][:MOST]:  # comparing names takes quadratic time
        fitting = [word for word in list(left)[:MOST] if _fits(net, name, left[word])]
        for word in nearest(_word(name), fitting, least=LEAST):
            pairs[name] = left.pop(word).name
    return [(name, pairs[name]) for name in names if name in pairs]


def suggested_names(net: Net, file: WeightsFile, most: int = 5) -> str:
    """Return `; nearly matching: conv1 (in the file: module/Conv_1), ...`, or the names of the file's layers."""
    pairs = suggest_layers(net, file)
    if not pairs:
        names = [layer.name for layer in file.layers if any(layer.blobs)]
        if not any(names):
            return "; its layers have no names" if names else "; none of its layers has weights"
        names = [name or "(unnamed)" for name in names[:most]] + ["..."] * (len(names) > most)
        return f"; its layers are called {', '.join(names)}, and none nearly matches in name and shapes"
    shown = first_of([f"{name} (in the file: {other})" for name, other in pairs], most=most)
    return f"; nearly matching, with the same shapes: {shown}"


def _fits(net: Net, name: str, layer: LayerWeights) -> bool:
    blobs = net.params[name]
    return len(blobs) == len(layer.blobs) and all(
        given is not None and given.fits(blob.shape) for blob, given in zip(blobs, layer.blobs)
    )


def _word(name: str) -> str:
    """Return a layer's name in lower case, without punctuation and anything before the last slash."""
    return re.sub(r"[^a-z0-9]", "", name.lower().rpartition("/")[2])
