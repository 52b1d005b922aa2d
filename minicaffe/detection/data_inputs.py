"""Inputs in place of data layers, for published nets that read their images from lists or databases also where they are used.

file = read_net("segnet_inference.prototxt")
data_layers(file, state)                    # those that images come from, if the net has no inputs
with_inputs(file, state, shape_of)          # the net with an Input in place of each, and without labels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from google.protobuf.message import Message

from minicaffe.data.data_transformer import crop_of
from minicaffe.errors import Error
from minicaffe.formats.prototxt import NetFile
from minicaffe.layer_list import LayerList, filter_layers
from minicaffe.layers.silence import Silence
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

LayerParameter = caffe_pb2.LayerParameter
ShapeOf = Callable[[LayerParameter, str], tuple[int, ...]]
"""The shape of the images of a data layer, from its parameters and its place in the prototxt."""
SIZES = (("crop_height", "crop_width"), ("crop_size", "crop_size"), ("new_height", "new_width"))
"""Fields of a data layer's blocks that say the size of its images."""


def with_inputs(file: NetFile, state: caffe_pb2.NetState, shape_of: ShapeOf) -> NetFile:
    """A net that reads its images by data layers, with an Input in place of each one's images, its first top, and without what
    only its other tops, the labels, lead to, and without layers that have no tops, such as writers; any other net as it is.
    state: of the net, for include and exclude rules. Raises what shape_of raises."""
    layers = filter_layers(list(zip(file.param.layer, file.sources, strict=True)), state)
    if not _data_layers(layers):
        return file
    kept, gone = list[LayerParameter](), set[str]()
    sources = []
    for param, source in layers:
        assert source is not None
        if _is_data(param):
            gone.update(param.top[1:])
            kept.append(_input(param, shape_of(param, str(source.at()))))
        elif gone.intersection(param.bottom):
            gone.update(set(param.top).difference(param.bottom))
            continue
        elif param.top or class_of(param) is Silence:
            kept.append(param)
        else:
            continue
        sources.append(source)
    changed = caffe_pb2.NetParameter()
    changed.CopyFrom(file.param)
    del changed.layer[:]
    changed.layer.extend(kept)
    return replace(file, param=changed, sources=sources)


def _input(param: LayerParameter, shape: tuple[int, ...]) -> LayerParameter:
    made = LayerParameter(name=param.name, type="Input", top=param.top[:1])
    made.input_param.shape.add(dim=shape)
    return made


def data_layers(file: NetFile, state: caffe_pb2.NetState) -> list[LayerParameter]:
    """The data layers that with_inputs replaces: none where the net has inputs."""
    return _data_layers(filter_layers(list(zip(file.param.layer, file.sources, strict=True)), state))


def _data_layers(layers: LayerList) -> list[LayerParameter]:
    firsts = [param for param, _ in layers if not param.bottom]
    return [] if any(class_of(param).is_input for param in firsts) else [param for param in firsts if _is_data(param)]


def _is_data(param: LayerParameter) -> bool:
    return not param.bottom and bool(param.top) and class_of(param).reads_data


def image_shape(param: LayerParameter, place: str, given: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of one image of a data layer (1, C, H, W), or clip (1, C, L, H, W): the given one of its top, or what the layer
    says. C is 3, or 1 for a layer that makes images grey. Raises Error where neither says it."""
    if param.top[0] in given:
        return given[param.top[0]]
    if size := image_size(param):
        length = max((getattr(block, "new_length", 0) for block in _blocks(param)), default=0)
        is_grey = param.transform_param.force_gray or not all(getattr(block, "is_color", True) for block in _blocks(param))
        return (1, 1 if is_grey else 3, *([length] if length else []), *size)
    raise Error(f'{place}: "{param.name}" does not say the size of its images: give --shape {param.top[0]}=1,3,HEIGHT,WIDTH')


def image_size(param: LayerParameter) -> tuple[int, int] | None:
    """The height and width of a data layer's images, of its crop or its resizing; None where it says neither."""
    transform = param.transform_param
    sizes = [crop_of(transform)]
    for high, wide in SIZES:
        sizes += [(getattr(block, high, 0), getattr(block, wide, 0)) for block in _blocks(param)]
    sizes.append((transform.resize_param.height, transform.resize_param.width))
    return next((size for size in sizes if all(size)), None)


def _blocks(param: LayerParameter) -> list[Message]:
    return [block for _, block in param.ListFields() if isinstance(block, Message)]


def image_means(param: LayerParameter) -> tuple[float, float, float]:
    """What a data layer subtracts from blue, green and red; zeros where it says nothing. Raises Error for a mean file, which
    the prototxt only names, and for other numbers of means."""
    transform = param.transform_param
    if transform.mean_file:
        file = transform.mean_file
        raise Error(f'data layer "{param.name}" subtracts {file}: give it with --mean-file, or its means with --mean')
    given = list(transform.mean_value) or [0.0]
    if len(given) not in (1, 3):
        raise Error(f'data layer "{param.name}" has {len(given)} mean_value for 3 channels: give --mean')
    blue, green, red = given * (3 // len(given))
    return blue, green, red
