"""The learnable blobs of a net: lr_mult, decay_mult, sharing between layers (`param { name }`), and their arrays.

Source: Caffe's Net::AppendParam and Net::ShareWeights.

A net's dicts by name: the error for an unknown name suggests close matches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar

from .blob import Array, Blob, BlobList
from .errors import Error, nearest
from .layer import Layer
from .proto import caffe_pb2

if TYPE_CHECKING:
    from .net import Net


Value = TypeVar("Value")
SHOWN = 8
"""Most names that a message lists."""


class UnknownNameError(Error, KeyError):
    """A name that a net lacks; also a KeyError, as for any dict."""

    def __str__(self) -> str:
        return str(self.args[0])


class Named(OrderedDict[str, Value]):
    """Values by name, in order. Raises UnknownNameError."""

    what: ClassVar[str] = "value"

    def __missing__(self, name: object) -> NoReturn:
        raise UnknownNameError(f'the net has no {self.what} "{name}"{names_near(str(name), self)}')


class Layers(Named[Layer]):
    """Layers by name."""

    what = "layer"


class Blobs(Named[Blob]):
    """Blobs by name. Raises TypeError for a value that is not a Blob."""

    what = "blob"

    def __setitem__(self, name: str, blob: Blob) -> None:
        if not isinstance(blob, Blob):
            raise TypeError(f'"{name}" is a blob: write blobs["{name}"].data[...] = values')
        super().__setitem__(name, blob)


class Params(Named[BlobList]):
    """Learnable blobs by the name of their layer. Raises TypeError for a value that is not a BlobList."""

    what = "layer with weights"

    def __setitem__(self, name: str, blobs: BlobList) -> None:
        if not isinstance(blobs, BlobList):
            raise TypeError(f'"{name}" has a list of blobs: write params["{name}"][0].data[...] = values')
        super().__setitem__(name, blobs)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "conv1"?`, with up to three close matches, or "" without any."""
    near = [f'"{other}"' for other in nearest(name, known, 3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def names_near(name: str, known: Iterable[str]) -> str:
    """Return did_you_mean's text, or without a close match the known names: `; there are "data", "conv1" and 7 more`."""
    known = list(known)
    if near := did_you_mean(name, known):
        return near
    shown = ", ".join(f'"{other}"' for other in known[:SHOWN])
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return f"; there {'is' if len(known) == 1 else 'are'} {shown}{more}" if known else ""


def check_names(given: Iterable[str], wanted: Sequence[str], what: str, whose: str) -> None:
    """Raise Error, with the missing and the unknown names, unless exactly the wanted names are given."""
    have, need = set(given), dict.fromkeys(wanted)  # a dict keeps the net's order for the message
    if have == need.keys():
        return
    parts = [f"{what} {sorted(have)} do not match {whose} {list(wanted)}"]
    if missing := [name for name in need if name not in have]:
        parts.append(f"missing: {', '.join(missing)}")
    unknown = sorted(have.difference(need))
    parts += [f'"{name}" is none of them{did_you_mean(name, need).replace(";", ",", 1)}' for name in unknown[:SHOWN]]
    if len(unknown) > SHOWN:
        parts.append(f"{len(unknown) - SHOWN} more are none of them")
    raise Error("; ".join(parts))


Weights = Mapping[str, Sequence[Array]]
"""The arrays of each layer that has weights, by its name."""


@dataclass
class _Owner:
    """The first layer that names a shared blob."""

    layer: Layer
    index: int
    position: int
    lr_given: bool
    decay_given: bool


@dataclass
class LearnableParameters:
    """Every learnable blob once, in order of layers, with its multipliers."""

    blobs: list[Blob] = field(default_factory=list)
    lr_mult: list[float] = field(default_factory=list)
    decay_mult: list[float] = field(default_factory=list)
    _owners: dict[str, _Owner] = field(default_factory=dict)
    _shared: dict[tuple[int, int], tuple[Layer, int, _Owner]] = field(default_factory=dict)

    def add_layer(self, layer: Layer) -> bool:
        """Add a connected layer's blobs; return whether any of them learns (lr_mult is not 0)."""
        specs = list(layer.param.param)
        if len(specs) > len(layer.blobs):
            raise layer.error(f"{len(specs)} param blocks given, but the layer has {len(layer.blobs)} learnable blobs", "param")
        # defaults: lr_mult and decay_mult 1; one object serves all, since it is only read
        specs += [caffe_pb2.ParamSpec()] * (len(layer.blobs) - len(specs))
        layer.param_propagate_down = [spec.lr_mult != 0 for spec in specs]
        for i, spec in enumerate(specs):
            if spec.name and spec.name in self._owners:
                self._join(layer, i, spec)
            else:
                self._own(layer, i, spec)
        return any(layer.param_propagate_down)

    def share(self) -> None:
        """Let every shared blob use its owner's memory."""
        for layer, i, owner in self._shared.values():
            layer.blobs[i].share_data(owner.layer.blobs[owner.index])
            layer.blobs[i].share_diff(owner.layer.blobs[owner.index])

    def is_shared(self, layer: Layer, index: int) -> bool:
        """Return whether an earlier layer owns the layer's blob at index, so that weights files may omit it."""
        return (id(layer), index) in self._shared

    def _own(self, layer: Layer, i: int, spec: caffe_pb2.ParamSpec) -> None:
        if spec.name:
            self._owners[spec.name] = _Owner(layer, i, len(self.blobs), spec.HasField("lr_mult"), spec.HasField("decay_mult"))
        self.blobs.append(layer.blobs[i])
        self.lr_mult.append(spec.lr_mult)
        self.decay_mult.append(spec.decay_mult)

    def _join(self, layer: Layer, i: int, spec: caffe_pb2.ParamSpec) -> None:
        owner = self._owners[spec.name]
        mine, theirs = layer.blobs[i], owner.layer.blobs[owner.index]
        permissive = spec.share_mode == caffe_pb2.ParamSpec.PERMISSIVE
        if mine.count != theirs.count if permissive else mine.shape != theirs.shape:
            raise layer.error(
                f'shares param "{spec.name}" with layer "{owner.layer.name}", its shape is {mine.shape}, there {theirs.shape}',
                f"param[{i}]",
            )
        self._shared[id(layer), i] = layer, i, owner  # holding the layer keeps its id unique
        for what, mults, given in (
            ("lr_mult", self.lr_mult, owner.lr_given),
            ("decay_mult", self.decay_mult, owner.decay_given),
        ):
            if not spec.HasField(what):  # type: ignore[arg-type]
                continue
            mult, owned = getattr(spec, what), mults[owner.position]
            if given and owned != mult:  # one sharer may leave the value to the other, but two values must agree
                raise layer.error(
                    f'param "{spec.name}" has {what} {mult}, but {owned} in layer "{owner.layer.name}"', f"param[{i}]"
                )
            mults[owner.position] = mult
        owner.lr_given |= spec.HasField("lr_mult")
        owner.decay_given |= spec.HasField("decay_mult")


def param_names(layer: Layer) -> list[str]:
    """Return the name of each learnable blob under which layers share it; "" for none."""
    return [spec.name for spec in layer.param.param] + [""] * (len(layer.blobs) - len(layer.param.param))


def weight_name(layer: Layer, i: int) -> str:
    """Return the name of the layer's learnable blob i."""
    names = layer.weight_names or ()
    return names[i] if i < len(names) else f"blob {i}"


def weight_layers(layers: Iterable[Layer]) -> Layers:
    """Return the layers with weights by name; a second one of a name is "name#2".

    net.params has the last layer of a name alone, and stored weights go to the first. A layer that shares all its blobs with
    an earlier one of its name is left out.
    """
    found = Layers()
    for layer in layers:
        if layer.blobs:
            key, number = layer.name, 1
            while key in found and not _shares_all(layer, found[key]):
                number += 1
                key = f"{layer.name}#{number}"
            found.setdefault(key, layer)
    return found


def _shares_all(layer: Layer, other: Layer) -> bool:
    return len(layer.blobs) == len(other.blobs) and all(map(Blob.shares_data_with, layer.blobs, other.blobs))


def check_names_differ(layers: Iterable[Layer], action: str) -> None:
    """Raise LayerError if two layers have weights of their own under one name. action: what this prevents."""
    named = weight_layers(layers)
    for key, layer in named.items():
        if key != layer.name:
            first = named[layer.name]
            place = f" ({first.source.at('name')})" if first.source else ""
            message = f"another layer with weights has this name{place}, and {action} needs weights by it; rename one of them"
            raise layer.error(message, "name")


def weights_of(net: Net) -> dict[str, list[Array]]:
    """Return the weights of weight_layers, not copied."""
    return {name: [blob.read_data() for blob in layer.blobs] for name, layer in weight_layers(net.layers).items()}


def put_weights(net: Net, weights: Weights) -> None:
    """Copy arrays such as those of weights_of into the net's blobs."""
    net.take_layouts((name, [array.shape for array in arrays]) for name, arrays in weights.items())
    for name, layer in weight_layers(net.layers).items():
        for blob, array in zip(layer.blobs, weights[name], strict=True):
            blob.data[...] = array.reshape(blob.shape)
