"""The deploy net of a training prototxt: inputs in place of data layers, probabilities in place of losses, no labels.

deployed = deploy(read_net("train_val.prototxt"), state)
deployed.text           # the prototxt; deployed.options prepare an image as the data layer does
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType

from minicaffe.detection.data_inputs import image_shape, is_data
from minicaffe.errors import Error, PrototxtError, on_one_line
from minicaffe.formats.prototxt import NetFile, to_text
from minicaffe.layer_list import filter_layers
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.data.input import DummyData
from minicaffe.layers.forks.frcnn.frcnn_roi_data import FrcnnRoiData
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

from .graph import Graph, input_layer
from .rescue import ENDS, OLD_END, STATISTICS, clean, is_loss, leave_out_training
from .rescue_inputs import FIXED, dummy_shape, input_note

LayerParameter = caffe_pb2.LayerParameter
Shapes = Mapping[str, tuple[int, ...]]

OF_ROIDB = (RoIData, FrcnnRoiData)
"""Data layers whose further tops are more than labels."""


@dataclass
class Deployed:
    """A net for TEST and notes on the changes.

    options: those of classify and run that prepare an image as the data layer does. advice: a sentence in place of options,
    for a data layer whose means are not in the prototxt.
    """

    param: caffe_pb2.NetParameter
    file: str
    notes: list[str] = field(default_factory=list)
    options: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """The prototxt."""
        head = [f"Written by minicaffe deploy from {os.path.basename(self.file)}", *self.notes]
        if self.options:
            head.append(f"Images are prepared by the options {self.options}")
        head += filter(None, [self.advice])
        return "".join(f"# {on_one_line(line)}\n" for line in head) + to_text(self.param)


def deploy(file: NetFile, state: caffe_pb2.NetState, shapes: Shapes = MappingProxyType({})) -> Deployed:
    """Return the deploy net of a prototxt. state: its state in TEST.

    shapes: of inputs, by top, where data layers do not say them; tops that would count as labels become inputs. Raises Error
    for a shape that neither says, and for a net without outputs.
    """
    deployed = Deployed(caffe_pb2.NetParameter(name=file.param.name), file.file)
    original = list(file.param.layer)
    layers = clean(_without_label_readers(deepcopy(original), shapes, deployed.notes), deployed.notes, state)
    if not layers:
        raise PrototxtError("no layer computes an output from an image: there is no net to deploy", file=file.file)
    sources = {top: i for i, layer in enumerate(original) if not layer.bottom for top in layer.top}
    now = filter_layers([(layer, None) for layer in original], state)
    used = {id(layer) for layer, _ in now}
    sources |= {top: i for i, layer in enumerate(original) if not layer.bottom and id(layer) in used for top in layer.top}
    needed = Graph(layers).inputs
    if unknown := [name for name in shapes if name not in needed]:
        dims = ",".join(map(str, shapes[unknown[0]]))
        raise Error(f"--shape {unknown[0]}={dims}: the inputs in place of data layers are {', '.join(needed) or 'none'}")
    inputs = list(_inputs(needed, file, sources, shapes, deployed))
    if any(_batch_statistics(layer) for layer in layers):
        deployed.notes.append(STATISTICS)
    deployed.param.layer.extend([*inputs, *layers])
    # A Deconvolution may get its weights only from its bilinear filler.
    learnt = {layer.name for layer in layers if class_of(layer) is not Deconvolution}
    leave_out_training(list(deployed.param.layer), learnt)
    return deployed


def _without_label_readers(layers: list[LayerParameter], shapes: Shapes, notes: list[str]) -> list[LayerParameter]:
    """Leave out layers that compute from labels and something else, such as a MarginInnerProduct, and all that follow them.

    Losses and Accuracy stay: clean replaces them.
    """
    labels, gone, removed = set[str](), set[str](), list[str]()
    kept = []
    for layer in layers:
        fed = labels.intersection(layer.bottom)
        if is_data(layer):
            labels.update(top for top in layer.top[1:] if top not in shapes and class_of(layer) not in OF_ROIDB)
        elif fed.issuperset(layer.bottom) and fed:
            labels.update(layer.top)
        elif gone.intersection(layer.bottom) or (fed and not _is_end(layer)):
            gone.update(set(layer.top).difference(layer.bottom))
            removed.append(layer.name)
            continue
        kept.append(layer)
    if removed:
        notes.append(f"Removed, because they need labels: {', '.join(removed)}.")
    return kept


def _is_end(layer: LayerParameter) -> bool:
    return is_loss(layer) or class_of(layer) in ENDS or layer.type == OLD_END


def _inputs(
    needed: list[str], file: NetFile, sources: dict[str, int], shapes: Shapes, deployed: Deployed
) -> Iterator[LayerParameter]:
    """Yield the layers that give the needed blobs, an Input for each.

    Layers of constants stay, a DummyData only next to other inputs. Raises Error.
    """
    layers = file.param.layer
    made = {sources[name] for name in needed if name in sources}
    constants = {i for i in made if not is_data(layers[i]) and layers[i].type != "Python"}
    if all(sources.get(name) in constants for name in needed):
        constants = {i for i in constants if class_of(layers[i]) is not DummyData}
    yield from (deepcopy(layers[i]) for i in sorted(constants))
    needed = [name for name in needed if sources.get(name) not in constants]
    for name in needed:
        if name not in sources:
            raise PrototxtError(f'no layer makes "{name}": give --shape {name}=N,C,H,W', file=file.file)
        param, source = layers[sources[name]], file.sources[sources[name]]
        shape = shapes.get(name) or FIXED.get(name) or _shape(param, name, str(source.at()))
        layer = input_layer(name, shape, top=name)
        deployed.notes.append(input_note(layer, param))
        if is_data(param) and not (deployed.options or deployed.advice) and len(shape) >= 4:
            deployed.advice = _advice(param)
            deployed.options = "" if deployed.advice else preprocessing(param)
        yield layer


def _shape(param: LayerParameter, name: str, place: str) -> tuple[int, ...]:
    if given := dummy_shape(param, name):
        return given
    if name != param.top[0]:
        raise PrototxtError(f'the shape of the input "{name}" is not known: give --shape {name}=N,...', file=place)
    return image_shape(param, place, {})


def _batch_statistics(layer: LayerParameter) -> bool:
    block = layer.batch_norm_param
    return class_of(layer) is BatchNorm and block.HasField("use_global_stats") and not block.use_global_stats


def _advice(param: LayerParameter) -> str:
    """Return where the means of a layer of a roidb are, "" for another data layer."""
    kind = class_of(param)
    if kind is RoIData:
        return f'Give run and detect the settings .yml of the training, if any: layer "{param.name}" subtracts its PIXEL_MEANS.'
    if kind is FrcnnRoiData:
        config = param.window_data_param.config
        return f'Give run and detect the pixel_means of {config} as the mean: layer "{param.name}" subtracts them.'
    return ""


def preprocessing(param: LayerParameter) -> str:
    """Return the options of classify and run for the mean and the scale of a data layer."""
    transform = param.transform_param
    words = ["--mean", "0,0,0"]
    if transform.mean_file:
        words = ["--mean-file", transform.mean_file]
    elif means := list(transform.mean_value):
        words = ["--mean", ",".join(f"{mean:.7g}" for mean in (means * 3 if len(means) == 1 else means))]
    if transform.scale != 1:
        words += ["--scale-factor", f"{transform.scale:.7g}"]
    return shlex.join(words)
