"""Nets of one layer on given arrays, and the comparison of every element that explain is asked for with the layer's."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

from minicaffe import TEST, Net
from minicaffe.proto import caffe_pb2
from minicaffe.tracing.explanations import Explanation, explain

Array = NDArray[Any]


def net_of(
    layers: str,
    *inputs: Array,
    tops: int = 1,
    in_place: bool = False,
    dtype: Any = np.float32,
    phase: int = TEST,
    fork: str = "",
) -> Net:
    """Return a net: input blobs in0, in1, ... that hold the arrays, then the layer {layers} named "it" with tops out0, ..."""
    blocks = [f'input: "in{i}" input_shape {{ {" ".join(f"dim: {n}" for n in x.shape)} }}' for i, x in enumerate(inputs)]
    names = " ".join(f'bottom: "in{i}"' for i in range(len(inputs)))
    outs = " ".join(f'top: "{"in" if in_place else "out"}{i}"' for i in range(tops))
    text = "\n".join([*blocks, f'layer {{ name: "it" {names} {outs} {layers} }}'])
    net = Net(text_format.Parse(text, caffe_pb2.NetParameter()), phase, dtype=dtype, fork=fork)
    for i, x in enumerate(inputs):
        net.blobs[f"in{i}"].data[...] = x
    return net


def explained_alike(net: Net, inputs: list[Array], random: np.random.Generator, *, layer: str = "it", most: int = 5) -> int:
    """explain some elements of every top and, backward, of every bottom that has a gradient; and of every weight; each must
    agree. How many."""
    found = net.layer_dict[layer]
    count = 0
    for backward in (False, True):
        names = net.bottom_names[layer] if backward else net.top_names[layer]
        for number, name in enumerate(names):
            if backward and number in found.index_bottoms:
                continue
            for at in places(net.blobs[name].shape, random, most):
                for i, x in enumerate(inputs):
                    net.blobs[f"in{i}"].data[...] = x
                sides = {"bottom": number, "backward": True, "dy": "random"} if backward else {"top": number}
                result = explain(net, layer, at, **sides)
                check(result)
                count += 1
    return count + weights_alike(net, inputs, random, layer, most)


def weights_alike(net: Net, inputs: list[Array], random: np.random.Generator, layer: str, most: int) -> int:
    """explain the gradients of some elements of every blob of the layer that backward moves; each must agree. How many."""
    count = 0
    for number, (blob, learnt) in enumerate(zip(net.layer_dict[layer].blobs, net.layer_dict[layer].param_propagate_down)):
        for at in places(blob.shape, random, most) if learnt else []:
            for i, x in enumerate(inputs):
                net.blobs[f"in{i}"].data[...] = x
            check(explain(net, layer, at, weight=number, dy="random"))
            count += 1
    return count


def check(result: Explanation) -> None:
    """Check that the explanation agrees with the layer, reports it, and prints no trailing blanks."""
    text = str(result)
    assert result.agrees, text
    assert "THEY DIFFER" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def places(shape: tuple[int, ...], random: np.random.Generator, most: int) -> list[tuple[int, ...]]:
    """Some indices into an array of this shape."""
    if 0 in shape:
        return []
    return [tuple(int(random.integers(n)) for n in shape) for _ in range(most if shape else 1)]
