"""Inputs in place of data layers, for published nets whose test phase reads images from lists or databases.

file = read_net("segnet_inference.prototxt")
data_layers(file, state)                    # the layers that read images, if the net has no inputs
with_inputs(file, state, shape_of)          # the net with Inputs in their place, without labels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from google.protobuf.message import Message

from minicaffe.data.data_transformer import crop_of
from minicaffe.errors import Error
from minicaffe.formats.prototxt import NetFile
from minicaffe.formats.source import LayerSource
from minicaffe.layer_list import LayerList, filter_layers
from minicaffe.layers.data.input import Input, MemoryData
from minicaffe.layers.data.prefetching import DataLayer, absent_source
from minicaffe.layers.metric.accuracy import Accuracy
from minicaffe.layers.shape.split import Silence
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

LayerParameter = caffe_pb2.LayerParameter
ShapeOf = Callable[[LayerParameter, str], tuple[int, ...]]
"""The shape of the images of a data layer, from its parameters and its place in the prototxt."""
SIZES = (("crop_height", "crop_width"), ("crop_size", "crop_size"), ("new_height", "new_width"))
"""Fields of a data layer's blocks that say the size of its images."""


def with_inputs(
    file: NetFile,
    state: caffe_pb2.NetState,
    shape_of: ShapeOf,
    *,
    replaced: Callable[[LayerParameter], bool] | None = None,
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    say: Callable[[str], None] = lambda note: None,
) -> NetFile:
    """Return a net with an Input in place of the images, the first top, of each data layer.

    Layers that only follow from its other tops, the labels, are left out, and so are layers without tops, such as writers. A
    net without such data layers is returned unchanged. state: the net's, for include and exclude rules. replaced: the layers
    that become inputs; by default all data layers of a net without inputs. shapes: of other tops that become inputs, because
    they are no labels. say: gets a sentence on the changes. Raises shape_of's errors.
    """
    layers = filter_layers(list(zip(file.param.layer, file.sources, strict=True)), state)
    data = [param for param, _ in layers if replaced(param)] if replaced else _data_layers(layers)
    if not data:
        return file
    changes = _Changes(shape_of, shapes, _labels(layers), [param.name for param in data])
    kept = [(one, source) for param, source in layers for one in changes.kept(param, source)]
    say(changes.note(data))
    changed = caffe_pb2.NetParameter()
    changed.CopyFrom(file.param)
    del changed.layer[:]
    changed.layer.extend(param for param, _ in kept)
    return replace(file, param=changed, sources=[source for _, source in kept if source is not None])


class _Changes:
    """The changes of each layer, in order."""

    def __init__(self, shape_of: ShapeOf, shapes: Mapping[str, tuple[int, ...]], labels: set[str], data: list[str]) -> None:
        self._shape_of, self._shapes, self._labels, self._data = shape_of, shapes, labels, data
        self._gone, self._left_out, self._inputs = set[str](), list[str](), list[str]()

    def kept(self, param: LayerParameter, source: LayerSource | None) -> list[LayerParameter]:
        """Return the layers that replace this one."""
        assert source is not None
        if is_data(param) and param.name in self._data:
            inputs = [top for i, top in enumerate(param.top) if top in self._shapes or (i == 0 and top not in self._labels)]
            self._gone.update(set(param.top).difference(inputs))
            shapes = {top: self._shapes.get(top) or self._shape_of(param, str(source.at())) for top in inputs}
            self._inputs += [f"{top} {'x'.join(map(str, shape))}" for top, shape in shapes.items()]
            return [_input(param, top, shape) for top, shape in shapes.items()]
        if self._gone.intersection(param.bottom):
            self._gone.update(set(param.top).difference(param.bottom))
        elif param.top or class_of(param) is Silence:
            return [param]
        self._left_out.append(param.name)
        return []

    def note(self, data: list[LayerParameter]) -> str:
        """Return a sentence on the inputs and on the layers left out."""
        places = ", ".join(f'{param.type} layer "{param.name}"' + _why(param) for param in data)
        left = f"; left out with the labels: {', '.join(self._left_out)}" * bool(self._left_out)
        return f"in place of {places}: input {', '.join(self._inputs) or 'none'}{left}"


def _why(param: LayerParameter) -> str:
    return f" ({source} is missing)" if (source := absent_source(param)) else ""


def _labels(layers: LayerList) -> set[str]:
    """Return the tops of data layers that only losses and Accuracy read as labels, also through layers without weights."""
    raw, needed, read = set[str](), set[str](), set[str]()
    for param, _ in layers:
        if is_data(param) or (param.bottom and raw.issuperset(param.bottom) and class_of(param).weight_names == ()):
            raw.update(param.top)
        else:
            raw.difference_update(param.top)
    for param, _ in reversed(layers):
        kind = class_of(param)
        if kind is Accuracy:
            needed.update(param.bottom[:1])
        elif kind.is_loss:
            needed.update(name for i, name in enumerate(param.bottom) if i == 0 or not (i in kind.index_bottoms or name in raw))
        elif (param.top and not read.issuperset(param.top)) or needed.intersection(param.top):
            needed.update(param.bottom)
        if param.top:  # a blob that only a writer or Silence reads stays an output
            read.update(param.bottom)
    return {top for param, _ in layers if is_data(param) for top in param.top if top in read - needed}


def _input(param: LayerParameter, top: str, shape: tuple[int, ...]) -> LayerParameter:
    made = LayerParameter(name=param.name if top == param.top[0] else top, type="Input", top=[top])
    made.input_param.shape.add(dim=shape)
    return made


def data_layers(file: NetFile, state: caffe_pb2.NetState) -> list[LayerParameter]:
    """Return the data layers that with_inputs replaces; none if the net has inputs."""
    return _data_layers(filter_layers(list(zip(file.param.layer, file.sources, strict=True)), state))


def _data_layers(layers: LayerList) -> list[LayerParameter]:
    firsts = [param for param, _ in layers if not param.bottom]
    return [] if any(issubclass(class_of(param), Input) for param in firsts) else [param for param in firsts if is_data(param)]


def is_data(param: LayerParameter) -> bool:
    return not param.bottom and bool(param.top) and issubclass(class_of(param), DataLayer)


def lacks_data(param: LayerParameter) -> bool:
    """Return True for a data layer whose database or list is missing, or whose batches a caller's code hands over."""
    if not is_data(param):
        return False
    return issubclass(class_of(param), MemoryData) or bool(absent_source(param))


def image_shape(
    param: LayerParameter,
    place: str,
    given: Mapping[str, tuple[int, ...]],
    *,
    batch: int | None = 1,
    hint: str = "give --shape {}=1,3,HEIGHT,WIDTH",
) -> tuple[int, ...]:
    """Return the shape of a data layer's images (batch, C, H, W), or clips (batch, C, L, H, W).

    It is the given shape of its top, or else the layer's. C is 1 for a layer that makes images grey, else the number of means,
    or 3. batch: None for the layer's own. hint: advice on how to give the shape of the top {}. Raises Error if the layer does
    not determine it.
    """
    if param.top[0] in given:
        return given[param.top[0]]
    batch = batch or max((getattr(block, "batch_size", 0) for block in _blocks(param)), default=0) or 1
    if size := image_size(param):
        length = max((getattr(block, "new_length", 0) for block in _blocks(param)), default=0)
        video = param.video_data_param
        if video.HasField("num_segments") or video.HasField("modality"):  # frames of segments, stacked along the channels
            stacked = video.num_segments * max(length, 1) * (2 if video.modality == caffe_pb2.VideoDataParameter.FLOW else 3)
            return (batch, stacked, *size)
        return (batch, _channels(param), *([length] if length else []), *size)
    absent = f"{source} is missing, and " if (source := absent_source(param)) else ""
    raise Error(f'{place}: {absent}"{param.name}" lacks the size of its images: {hint.format(param.top[0])}')


def _channels(param: LayerParameter) -> int:
    means = len(param.transform_param.mean_value)
    is_grey = param.transform_param.force_gray or not all(getattr(block, "is_color", True) for block in _blocks(param))
    return param.memory_data_param.channels or (1 if is_grey else means if means > 1 else 3)


def image_size(param: LayerParameter) -> tuple[int, int] | None:
    """Return the height and width of a data layer's images, from its crop or its resizing; None if it has neither."""
    transform = param.transform_param
    sizes = [crop_of(transform)]
    for high, wide in SIZES:
        sizes += [(getattr(block, high, 0), getattr(block, wide, 0)) for block in _blocks(param)]
    sizes.append((param.memory_data_param.height, param.memory_data_param.width))
    sizes.append((transform.resize_param.height, transform.resize_param.width))
    return next((size for size in sizes if all(size)), None)


def _blocks(param: LayerParameter) -> list[Message]:
    return [block for _, block in param.ListFields() if isinstance(block, Message)]


def image_means(param: LayerParameter) -> tuple[float, float, float]:
    """Return the means that a data layer subtracts from blue, green and red; zeros if it has none.

    Raises Error for a mean file, which the prototxt only names, and for other numbers of means.
    """
    transform = param.transform_param
    if transform.mean_file:
        file = transform.mean_file
        raise Error(f'data layer "{param.name}" subtracts {file}: give it with --mean-file, or its means with --mean')
    given = list(transform.mean_value) or [0.0]
    if len(given) not in (1, 3):
        raise Error(f'data layer "{param.name}" has {len(given)} mean_value for 3 channels: give --mean')
    blue, green, red = given * (3 // len(given))
    return blue, green, red
