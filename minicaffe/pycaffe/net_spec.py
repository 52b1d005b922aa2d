"""NetSpec: nets written in Python, with the interface of pycaffe's net_spec.

    n = NetSpec()
    n.data, n.label = L.Data(source="train_lmdb", backend=P.Data.LMDB, batch_size=64, ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.conv1, in_place=True)
    n.to_proto()                                       # a NetParameter: str() is the prototxt; Net() takes it too

L.Type(*bottoms, **fields) makes a layer. A field belongs to the type's parameter message, else to LayerParameter; ntop (default
1) and in_place are arguments. It returns the Top, a tuple of Tops, or with ntop=0 the Function. P.Pooling.MAX is an enum value.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf.message import Message

from minicaffe.errors import NetSpecError, nearest
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of


def param_name_dict() -> dict[str, str]:
    """Return by layer type the stem of its parameter field: {"Convolution": "convolution", ...}."""
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields
    own = [(field.name, field.message_type) for field in fields if field.name.endswith("_param")]
    return {kind.name.removesuffix("Parameter"): name.removesuffix("_param") for name, kind in own if kind is not None}


_param_names = param_name_dict() | {"Deconvolution": "convolution"}
"""Also for a type that uses another type's parameters, as in RefineDet's net_spec."""


def assign_proto(proto: Message, name: str, val: Any, where: str = "") -> None:
    """Set a field: a dict fills a message, a list or a single value a repeated field. where: the message's place, for errors.

    Raises AttributeError for a field that the message lacks.
    """
    fields = proto.DESCRIPTOR.fields_by_name
    if name not in fields:
        raise AttributeError(f"no field {name} in {where or proto.DESCRIPTOR.name}{_meant(name, fields)}")
    field = getattr(proto, name)
    if hasattr(field, "extend"):
        for item in val if isinstance(val, list | tuple) else [val]:
            if isinstance(item, Mapping):
                _assign_all(field.add(), item, name)
            else:
                field.append(item)
    elif isinstance(val, Mapping):
        field.SetInParent()  # makes the message present even for an empty dict
        _assign_all(field, val, name)
    elif isinstance(val, Message):
        field.CopyFrom(val)
    else:
        setattr(proto, name, val)


def _assign_all(proto: Message, values: Mapping[str, Any], where: str) -> None:
    for key, value in values.items():
        assign_proto(proto, key, value, where)


def _meant(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near[0]}?" if near else ""


class Top:
    """Output n of the layer fn."""

    def __init__(self, fn: Function, n: int) -> None:
        self.fn, self.n = fn, n

    def to_proto(self) -> caffe_pb2.NetParameter:
        """Return the net that computes this top."""
        return to_proto(self)


class Function:
    """One layer: its type, its bottoms as Tops, and its fields. Raises NetSpecError for a bottom that is not a Top."""

    def __init__(self, type_name: str, inputs: tuple[Any, ...], params: Mapping[str, Any]) -> None:
        for i, top in enumerate(inputs):
            if not isinstance(top, Top):
                raise NetSpecError(
                    f"{type_name}: bottom {i} is {type(top).__name__}, not the Top of a layer (pass fields by name)"
                )
        self.type_name = type_name
        self.inputs: tuple[Top, ...] = inputs
        self.params = dict(params)
        self.ntop: int = self.params.pop("ntop", 1)
        self.in_place: bool = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def to_proto(self) -> caffe_pb2.NetParameter:
        """Return the net up to this layer."""
        return to_proto(self)


class _Writer:
    """Layers in the order in which they are needed, each once. Unnamed tops are named after their type, with a number."""

    def __init__(self, names: dict[Any, str]) -> None:
        self.names = names
        self.numbers: Counter[str] = Counter()
        self.layers: OrderedDict[Function, caffe_pb2.LayerParameter] = OrderedDict()

    def add(self, last: Function) -> None:
        """Add a layer after those that it reads, without recursion: nets may be thousands of layers deep."""
        pending = [last]
        while pending:
            fn = pending[-1]
            missing = [top.fn for top in fn.inputs if top.fn not in self.layers]
            if missing:
                pending.extend(reversed(missing))  # reversed, because pop takes the last one first
                continue
            pending.pop()
            if fn not in self.layers:
                self.layers[fn] = self._layer(fn)

    def _layer(self, fn: Function) -> caffe_pb2.LayerParameter:
        layer = caffe_pb2.LayerParameter(type=fn.type_name)
        layer.bottom.extend(self.layers[top.fn].top[top.n] for top in fn.inputs)
        # In place, the tops are the bottoms' names.
        layer.top.extend(layer.bottom if fn.in_place else [self._name(top, fn.type_name) for top in fn.tops])
        layer.name = self._name(fn.tops[0] if fn.tops else fn, fn.type_name)
        for key, value in fn.params.items():
            try:
                _assign(layer, fn.type_name, key, value)
            except (AttributeError, TypeError, ValueError) as error:
                raise NetSpecError(f'{fn.type_name} layer "{layer.name}": {key}={value!r}: {error}') from error
        return layer

    def _name(self, named: Top | Function, type_name: str) -> str:
        if named not in self.names:
            self.numbers[type_name] += 1
            self.names[named] = f"{type_name}{self.numbers[type_name]}"
        return self.names[named]


def _assign(layer: caffe_pb2.LayerParameter, type_name: str, key: str, value: Any) -> None:
    """Set a field of the type's parameter message if that has it, else of the layer."""
    own, fields = _param_names.get(type_name), layer.DESCRIPTOR.fields_by_name
    if own is not None and not (key.endswith("param") and key in fields):  # convolution_param=dict(...) is a field of the layer
        message = getattr(layer, own + "_param")
        if key in message.DESCRIPTOR.fields_by_name:
            if isinstance(value, list | tuple) and not hasattr(getattr(message, key), "extend"):
                raise TypeError(f"{own}_param has one {key}, no list{_elsewhere(layer, key, own)}")
            return assign_proto(message, key, value)
    if key not in fields:
        where = f"{own}_param and the layer have" if own else f"{type_name} has no message of its own, and the layer has"
        raise AttributeError(f"{where} no field {key}{_elsewhere(layer, key, own)}")
    return assign_proto(layer, key, value)


def _elsewhere(layer: caffe_pb2.LayerParameter, key: str, own: str | None) -> str:
    """Return advice on which message of the layer takes the field, or else which field may be meant."""
    names = [*class_of(layer).param_block, "transform_param"]
    read = {name: getattr(layer, name).DESCRIPTOR.fields_by_name for name in names if name != f"{own}_param"}
    name = next((name for name, fields in read.items() if key in fields), "MESSAGE_param")
    way = f"; write {name}=dict({key}=...)"
    if name in read:
        return way
    known = [*layer.DESCRIPTOR.fields_by_name, *(getattr(layer, f"{own}_param").DESCRIPTOR.fields_by_name if own else ())]
    return f"{way} for another message{_meant(key, [*known, *(field for fields in read.values() for field in fields)])}"


def to_proto(*tops: Top | Function) -> caffe_pb2.NetParameter:
    """Return the net that computes these tops, which have no names."""
    return _net(_Writer({}), tops)


def _net(writer: _Writer, tops: Any) -> caffe_pb2.NetParameter:
    for top in tops:
        writer.add(top if isinstance(top, Function) else top.fn)
    net = caffe_pb2.NetParameter()
    net.layer.extend(writer.layers.values())
    return net


class NetSpec:
    """A net under construction. Its attributes (and items) are its named tops, in order."""

    tops: OrderedDict[str, Any]

    def __init__(self) -> None:
        super().__setattr__("tops", OrderedDict())

    def __setattr__(self, name: str, value: Any) -> None:
        self.tops[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.tops[name]
        except KeyError:
            raise AttributeError(f'the NetSpec has no top "{name}"') from None

    def __getitem__(self, item: str) -> Any:
        return self.tops[item]

    def __delattr__(self, name: str) -> None:
        del self.tops[name]

    __setitem__, __delitem__ = __setattr__, __delattr__

    def keys(self) -> list[str]:
        """Return the names."""
        return list(self.tops)

    def vals(self) -> list[Any]:
        """Return the tops."""
        return list(self.tops.values())

    def update(self, name: str, params: Mapping[str, Any]) -> None:
        """Change fields of this top's layer, as in SSD's pycaffe."""
        self.tops[name].fn.params.update(params)

    def to_proto(self) -> caffe_pb2.NetParameter:
        """Return the net, in which a layer has the name of its first top."""
        return _net(_Writer({top: name for name, top in self.tops.items()}), self.tops.values())


def layer_function(type_name: str) -> Callable[..., Any]:
    """Return the function L.<type_name>."""

    def layer(*bottoms: Top, **fields: Any) -> Any:
        fn = Function(type_name, bottoms, fields)
        if fn.ntop == 0:
            return fn
        return fn.tops[0] if fn.ntop == 1 else fn.tops

    layer.__name__ = layer.__qualname__ = type_name
    return layer


class Layers:
    """L, whose attributes are layer types."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # copy and inspect look these up
            raise AttributeError(name)
        return layer_function(name)


class Parameters:
    """P: P.Pooling.MAX is the value MAX of PoolingParameter."""

    def __getattr__(self, name: str) -> Any:
        if not hasattr(caffe_pb2, name + "Parameter"):
            raise AttributeError(f'there is no message "{name}Parameter"')
        return _Values(getattr(caffe_pb2, name + "Parameter"))


class _Values:
    """A message whose attributes are the values of its enums. Other attributes, and a call, go to its class."""

    def __init__(self, message: type[Message]) -> None:
        self._message = message

    def __call__(self, **fields: Any) -> Message:
        return self._message(**fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or hasattr(self._message, name):
            return getattr(self._message, name)
        kind = self._message.DESCRIPTOR
        values = [value for enum in kind.enum_types for value in enum.values_by_name]
        has = f"it has {', '.join(values)}" if values else "it has no enums"
        raise AttributeError(f"{kind.name} has no value {name}: {has}")


layers = Layers()
params = Parameters()
