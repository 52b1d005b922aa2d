"""Computing a part of a net again with one layer changed: a hypothesis tried in numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.detection.inputs import put_array
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]
Arrays = dict[str, Array]


@dataclass
class Trial:
    """A layer about to be computed, to be changed: param; blobs, its weights; bottoms: what is done to its inputs; tweak: what
    is done to the layer object, set up; after: what is done to what it gives."""

    param: caffe_pb2.LayerParameter
    blobs: list[Array]
    bottoms: Callable[[list[Array]], list[Array]] | None = None
    tweak: Callable[[Layer], None] | None = None
    after: Callable[[list[Array]], list[Array]] | None = None


Change = Callable[[Trial], None]
"""Makes a hypothesis of a trial; may raise ValueError, IndexError or Error where it does not apply."""


@dataclass(frozen=True)
class Variant:
    """A hypothesis in words, of B, and as a change."""

    cause: str
    change: Change


@dataclass
class Segment:
    """Layers in a row, the last one's top `which` compared, and the values of the blobs that they read."""

    layers: list[Layer]
    given: Arrays
    which: int
    phase: int
    dtype: np.dtype[Any]

    def run(self, at: int, change: Change | None = None) -> Array | None:
        """The compared blob with layer `at` changed; None where the changed layer cannot be."""
        params = [_bare(layer.param) for layer in self.layers]
        for i, param in enumerate(params):
            param.name = f"layer {i}"
        trial = Trial(params[at], [blob.read_data().copy() for blob in self.layers[at].blobs])
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if change:
                    change(trial)
                return self._run(params, at, trial)
        except (Error, ValueError, IndexError, TypeError, ZeroDivisionError):
            return None

    def _run(self, params: list[caffe_pb2.LayerParameter], at: int, trial: Trial) -> Array:
        inputs = [_input(name, array) for name, array in self.given.items()]
        param = caffe_pb2.NetParameter(layer=[*inputs, *params])
        net = Net(param, self.phase, dtype=self.dtype, settings=self.layers[at].settings)
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
            layer.forward_pass(bottoms, tops)
            if changed and trial.after:
                for blob, array in zip(tops, trial.after([blob.data.copy() for blob in tops])):
                    blob.reshape(array.shape)
                    blob.data[...] = array
        made: Array = net.nodes[net.index_of(f"layer {len(self.layers) - 1}")].tops[self.which].data.copy()
        return made


def _input(name: str, array: Array) -> caffe_pb2.LayerParameter:
    shape = caffe_pb2.BlobShape(dim=array.shape)
    return caffe_pb2.LayerParameter(
        name=f"input {name}", type="Input", top=[name], input_param=caffe_pb2.InputParameter(shape=[shape])
    )


def _bare(param: caffe_pb2.LayerParameter) -> caffe_pb2.LayerParameter:
    """A copy without rules, shared names and fillers: its weights are put in."""
    new = caffe_pb2.LayerParameter()
    new.CopyFrom(param)
    for name in ("include", "exclude", "param", "phase", "blobs"):
        new.ClearField(name)
    for descriptor, block in new.ListFields():
        for filler in ("weight_filler", "bias_filler", "filler"):
            if descriptor.message_type and filler in descriptor.message_type.fields_by_name:
                block.ClearField(filler)
    return new
