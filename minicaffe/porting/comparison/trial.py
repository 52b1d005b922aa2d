"""Recomputing a part of a net with one layer changed: the test of a hypothesis."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array, Arrays
from minicaffe.detection.inputs import put_array
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.net import Net
from minicaffe.porting.layer_params import clear_fillers, input_layer
from minicaffe.proto import caffe_pb2


@dataclass
class Trial:
    """A layer about to be computed, open to changes of its param and blobs (its weights). bottoms: changes its inputs; tweak:
    the layer object after setup; top: returns another first top, from the first bottom and top."""

    param: caffe_pb2.LayerParameter
    blobs: list[Array]
    bottoms: Callable[[list[Array]], list[Array]] | None = None
    tweak: Callable[[Layer], None] | None = None
    top: Callable[[Array, Array], Array] | None = None


Change = Callable[[Trial], None]
"""Applies a hypothesis to a trial; may raise ValueError, IndexError or Error if it does not apply."""


@dataclass(frozen=True)
class Variant:
    """A hypothesis about B, in words and as a change."""

    cause: str
    change: Change


@dataclass
class Segment:
    """Consecutive layers, of which the last one's top `which` is compared, and the values of the blobs that they read."""

    layers: list[Layer]
    given: Arrays
    which: int
    phase: int
    dtype: np.dtype[Any]

    def run(self, at: int, change: Change) -> Array | None:
        """The compared blob with layer `at` changed; None if the change does not apply."""
        params = [_bare(layer.param) for layer in self.layers]
        for i, param in enumerate(params):
            param.name = f"layer {i}"  # unique, whatever the names in A
        trial = Trial(params[at], [blob.read_data().copy() for blob in self.layers[at].blobs])
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                change(trial)
                return self._run(params, at, trial)
        except (Error, ValueError, IndexError, TypeError, ZeroDivisionError):  # the hypothesis does not fit this layer: no news
            return None

    def _run(self, params: list[caffe_pb2.LayerParameter], at: int, trial: Trial) -> Array:
        inputs = [input_layer(f"input {name}", array.shape, top=name) for name, array in self.given.items()]
        param = caffe_pb2.NetParameter(layer=[*inputs, *params])
        net = Net(param, self.phase, dtype=self.dtype, settings=self.layers[at].settings, fork=self.layers[at].fork.name)
        for name, array in self.given.items():
            put_array(net, name, array)
        for i, layer in enumerate(self.layers):
            values = trial.blobs if i == at else [blob.read_data() for blob in layer.blobs]
            for blob, array in zip(net.layer_dict[f"layer {i}"].blobs, values, strict=True):
                blob.data[...] = array.reshape(blob.shape)
        for i, layer in enumerate(net.layers):
            changed = layer.name == f"layer {at}"
            bottoms, tops = net.nodes[i].bottoms, net.nodes[i].tops
            if changed and trial.bottoms:
                for blob, array in zip(bottoms, trial.bottoms([blob.data.copy() for blob in bottoms])):
                    blob.reshape(array.shape)
                    blob.data[...] = array
            if changed and trial.tweak:
                trial.tweak(layer)
            first = bottoms[0].data.copy() if changed and trial.top else None  # the layer may overwrite it
            layer.forward_pass(bottoms, tops)
            if trial.top and first is not None:
                tops[0].data[...] = trial.top(first, tops[0].data.copy())
        made: Array = net.nodes[net.index_of(f"layer {len(self.layers) - 1}")].tops[self.which].data.copy()
        return made


def _bare(param: caffe_pb2.LayerParameter) -> caffe_pb2.LayerParameter:
    """A copy without rules, shared names and fillers: the weights are copied in."""
    new = caffe_pb2.LayerParameter()
    new.CopyFrom(param)
    for name in ("include", "exclude", "param", "phase", "blobs"):
        new.ClearField(name)
    clear_fillers(new)
    return new
