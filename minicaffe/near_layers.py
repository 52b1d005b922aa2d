"""Which layers of a weights file nearly match a net's: what to say when none has the right name."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from .caffemodel import LayerWeights
from .net import Net
from .weights import WeightsFile

LEAST = 0.5
"""How alike two names of layers with the same shapes must be to be mentioned, of 1."""


def near_layers(net: Net, file: WeightsFile) -> list[tuple[str, str]]:
    """(the net's name, the file's) of layers whose blobs have the same shapes and whose names are alike, each once; where all
    shapes agree in their order, all of them whatever their names."""
    stored = [layer for layer in file.layers if any(layer.blobs)]
    names = [name for name, blobs in net.params.items() if blobs]
    if len(stored) == len(names) and all(_fits(net, name, layer) for name, layer in zip(names, stored)):
        return [(name, layer.name) for name, layer in zip(names, stored)]
    pairs = []
    for name in names:
        alike = [(_likeness(name, layer.name), layer) for layer in stored if _fits(net, name, layer)]
        best = max(alike, key=lambda item: item[0], default=(0.0, None))
        if best[1] is not None and best[0] >= LEAST:
            pairs.append((name, best[1].name))
            stored.remove(best[1])
    return pairs


def near_text(net: Net, file: WeightsFile, most: int = 5) -> str:
    """`; nearly matching: conv1 (in the file: module/Conv_1), ...`, or what the file's layers are called."""
    pairs = near_layers(net, file)
    if not pairs:
        called = [layer.name for layer in file.layers if any(layer.blobs)]
        called = called[:most] + ["..."] * (len(called) > most)
        return f"; its layers are called {', '.join(called)}, and none nearly matches in name and shapes"
    shown = ", ".join(f"{name} (in the file: {other})" for name, other in pairs[:most])
    more = f" and {len(pairs) - most} more" if len(pairs) > most else ""
    return f"; nearly matching, with the same shapes: {shown}{more}"


def _fits(net: Net, name: str, layer: LayerWeights) -> bool:
    blobs = net.params[name]
    return len(blobs) == len(layer.blobs) and all(
        given is not None and given.fits(blob.shape) for blob, given in zip(blobs, layer.blobs)
    )


def _likeness(a: str, b: str) -> float:
    """1 for names that differ in case, punctuation and what stands before the last slash only."""
    a, b = (re.sub(r"[^a-z0-9]", "", name.lower().rpartition("/")[2]) for name in (a, b))
    return SequenceMatcher(None, a, b).ratio()
