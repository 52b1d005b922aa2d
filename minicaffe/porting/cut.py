"""Parts of a net as nets of their own, with only their weights; a detector without the head that chips cannot run.

part = cut(net, starts=["conv3_1"], ends=["blob:pool5"])     # Input layers, the layers between, their weights
part.save("part.prototxt", "part.caffemodel")
trunk, rest = drop_head(net, target="rknn")                  # rest reads the trunk's blobs; join_script joins both

A user's name selects a layer, or a blob's last value. `blob:conv1` selects the blob if a layer has the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from minicaffe.blob import Array, Arrays
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.inputs import put_array
from minicaffe.errors import Error
from minicaffe.files import replacing
from minicaffe.formats.prototxt import to_text
from minicaffe.layer import Layer
from minicaffe.layers.data.input import Input
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import check_names_differ, names_near, put_weights
from minicaffe.proto import caffe_pb2

from .cut_targets import DOCUMENTS, TARGETS, beyond_limits, does_nothing, is_head, lacks, unlisted
from .graph import Graph, LayerParameter, Value, bypass, without

__all__ = ["TARGETS", "Part", "blob_at", "cut", "cut_at", "drop_head", "has_head", "join_script", "run_parts"]

Path = str | os.PathLike[str]
Files = tuple[str, str]
BLOB, LAYER = "blob:", "layer:"

SCRIPT = '''"""Run the two parts of a net, the second on blobs of the first: the outputs of the whole net.

    import join
    outputs = join.forward(**{{name: array for each name in join.INPUTS}})

Where another program runs the first part, hand its outputs to run_rest. Written by minicaffe cut.
"""

from pathlib import Path

import minicaffe{settings_import}

HERE = Path(__file__).resolve().parent
INPUTS = {inputs}
HANDED = {handed}
"""Outputs of the first part that the second reads."""
KEPT = {kept}
"""Outputs of the first part that are outputs of the whole net."""

first = minicaffe.Net(HERE / {first!r}, minicaffe.TEST, weights=HERE / {first_weights!r}{options})
rest = minicaffe.Net(HERE / {rest!r}, minicaffe.TEST, weights=HERE / {rest_weights!r}{options})


def forward(**inputs):
    """The whole net's outputs by name. inputs: an array for each of INPUTS, of any size that the net takes."""
    made = run(first, inputs, HANDED + KEPT)
    return {{**{{name: made[name] for name in KEPT}}, **run_rest({{**inputs, **made}})}}


def run_rest(blobs):
    """The second part's outputs by name. blobs: an array for each of its inputs; others are ignored."""
    return run(rest, blobs, rest.outputs)


def run(net, blobs, outputs):
    for name in net.inputs:
        net.blobs[name].reshape(*blobs[name].shape)
        net.blobs[name].data[...] = blobs[name]
    net.forward()
    return {{name: net.blobs[name].data.copy() for name in outputs}}
'''


@dataclass(frozen=True)
class Part:
    """Some layers of a net, after an Input layer for each blob that they read from others. outputs: the ends of the cut.

    param: V2, of TEST, without rules and Splits. weights: the arrays of its layers. lines: the place of each layer in the whole
    net's prototxt, "" where it has none. settings, fork: the whole net's.
    """

    param: caffe_pb2.NetParameter
    weights: Mapping[str, Sequence[Array]]
    outputs: list[str]
    lines: list[str]
    settings: DetectionSettings
    fork: str

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input."""
        made = [layer for layer in self.param.layer if layer.type == "Input"]
        return {layer.top[0]: tuple(layer.input_param.shape[0].dim) for layer in made}

    def net(self) -> Net:
        """Return the part as a Net, with its weights."""
        net = Net(self.param, TEST, settings=self.settings, fork=self.fork)
        put_weights(net, self.weights)
        return net

    def for_target(self, target: str) -> Part:
        """Return the part for a target (cut_targets.py), without Dropouts that the target does not list.

        Raises Error with all other layers that it does not list, and all fields and sizes beyond its limits.
        """
        wrong = [unlisted(zip(self.param.layer, self.lines, strict=True), target)]
        listed = [layer.type.lower() in TARGETS[target] or not does_nothing(layer) for layer in self.param.layer]
        kept = [i for i, is_listed in enumerate(listed) if is_listed]
        param = deepcopy(self.param)
        del param.layer[:]
        param.layer.extend(self.param.layer[i] for i in kept)
        part = replace(self, param=param, lines=[self.lines[i] for i in kept])
        wrong.append(part._beyond(target))
        if any(wrong):
            raise Error("\n".join(filter(None, wrong)))
        return part

    def _beyond(self, target: str) -> str:
        """Return a message on what is beyond the target's limits, or ""."""
        lines = {layer.name: line for layer, line in zip(self.param.layer, self.lines, strict=True)}
        rows = []
        for layer, field, says in beyond_limits(self.net(), target):
            line = lines.get(layer.name, "")
            rows.append(f'\n  {line}{": " if line else ""}{layer.type} "{layer.name}": {field} is {says}')
        count = f"{len(rows)} values are" if len(rows) > 1 else "1 value is"
        return f"{count} beyond the limits of --target {target} ({DOCUMENTS[target]}):{''.join(rows)}" if rows else ""

    def save(self, prototxt: Path, weights: Path) -> None:
        """Write both files, the weights as Net.save does. Raises Error."""
        with replacing(prototxt) as net_draft, replacing(weights) as weights_draft:
            net_draft.write_text(to_text(self.param), encoding="utf-8")
            self.net().save(weights_draft)


class NetGraph(Graph):
    """A TEST net's layers without their rules and stored blobs, and without the Splits that the net inserts. own: the layers.

    Raises Error for a TRAIN net.
    """

    def __init__(self, net: Net) -> None:
        if net.phase != TEST:
            raise Error("a net is cut in TEST; this one is in TRAIN")
        params = [without(layer.param, "include", "exclude", "blobs") for layer in net.layers]
        self.own: list[Layer] = [layer for layer in net.layers if not _is_inserted(layer.param)]
        super().__init__(bypass(params, _is_inserted))

    def is_input(self, i: int) -> bool:
        return isinstance(self.own[i], Input)

    def is_constant(self, i: int) -> bool:
        """Return True for a layer that makes its tops without inputs or data, such as DummyData and Parameter."""
        return not (self.reads[i] or isinstance(self.own[i], Input | DataLayer))

    def find(self, name: str) -> tuple[int | None, Value | None]:
        """Return the layer or the last value of the blob that has the name. Raises Error."""
        bare = name.removeprefix(BLOB).removeprefix(LAYER)
        layers = {layer.name: i for i, layer in reversed(self.layers.items())}
        if bare in layers and not name.startswith(BLOB):
            return layers[bare], None
        if bare in self.last and not name.startswith(LAYER):
            return None, self.last[bare]
        kind = "blob" if name.startswith(BLOB) else "layer" if name.startswith(LAYER) else "layer and no blob"
        known = [*layers, *self.last] if kind == "layer and no blob" else [*(self.last if kind == "blob" else layers)]
        raise Error(f'the net has no {kind} "{bare}"{names_near(bare, dict.fromkeys(known))}')


def _is_inserted(layer: LayerParameter) -> bool:
    """Return True for a Split inserted by the net, recognised by Caffe's names for its tops."""
    if layer.type != Split.type or not layer.name.endswith("_split"):
        return False
    return list(layer.top) == [f"{layer.name}_{k}" for k in range(len(layer.top))]


def cut(net: Net, starts: Sequence[str] = (), ends: Sequence[str] = ()) -> Part:
    """Return the part of a TEST net that computes `ends` from `starts` (default: all inputs, all outputs).

    A name is a layer's (a start takes the blobs that it reads, an end those that it makes), else a blob's: its last value;
    "blob:NAME" is the blob where both have the name. With starts the part has the layers that depend on one of them and that
    an end depends on; whatever else these read becomes an input too. Raises Error, naming what is unknown, not connected, or
    overwritten in place.
    """
    graph = NetGraph(net)
    started = [_from(graph, name) for name in starts]
    reached = set().union(*started) if starts else set(graph.layers)
    wanted = {name: _to(graph, name) for name in ends}
    for name, values in wanted.items():
        if not any(step in reached for step, _ in values):
            raise Error(f"--to {name} does not depend on --from {', '.join(starts)}")
    if not ends:
        wanted = {"the outputs": [graph.last[name] for name in net.outputs if graph.last[name][0] in reached]}
    values = list(dict.fromkeys(value for group in wanted.values() for value in group))
    chosen = reached & graph.before(values)
    for name, layers in zip(starts, started, strict=True):
        if not layers & chosen:
            raise Error(f"--from {name} leads to none of {', '.join(f'--to {end}' for end in ends) or 'the outputs'}")
    return _part(net, graph, chosen, values)


def cut_at(net: Net, blob: str) -> tuple[Part, Part]:
    """Split the net in two parts. The second reads this blob's last value, and whatever else it needs of the first."""
    rest = cut(net, [f"{BLOB}{blob}"])
    return cut(net, ends=[f"{BLOB}{name}" for name in rest.inputs if name not in net.inputs]), rest


def blob_at(net: Net, part: float) -> str | None:
    """Return the first blob for cut_at that is no output, from this fraction of the layers on; None if there is none."""
    inner = [layer for layer in net.layers if not isinstance(layer, Split | Input) and layer.param.bottom]
    blobs = (top for layer in inner[int(len(inner) * part) :] for top in layer.param.top)
    return next((blob for blob in blobs if blob not in net.outputs), None)


def _from(graph: NetGraph, name: str) -> set[int]:
    """Return the layers that a start selects: a layer and those after it, or those after a blob."""
    step, value = graph.find(name)
    return graph.after([value]) if value is not None else {step, *graph.after(graph.values(step))}  # type: ignore[arg-type]


def _to(graph: NetGraph, name: str) -> list[Value]:
    step, value = graph.find(name)
    values = [value] if value is not None else graph.values(step)  # type: ignore[arg-type]
    if not values:
        raise Error(f'--to {name}: the layer "{name}" has no top')
    return values


def has_head(net: Net) -> bool:
    """Return True if the net has a layer of a detector's head, at which drop_head cuts."""
    return any(is_head(layer.param) for layer in net.layers)


def drop_head(net: Net, target: str = "") -> tuple[Part, Part]:
    """Split a detector in two parts, before the first layers that chips lack.

    With a target, the layers that it lacks count too. The second part has these layers and all that depend on them, and reads
    the first's outputs. Raises Error if one of the two would be empty.
    """
    graph = NetGraph(net)
    heads = [i for i, layer in graph.layers.items() if is_head(layer) or (target and lacks(target, layer))]
    heads = [i for i in heads if not graph.is_input(i)]
    if not heads:
        raise Error("the net has no head: no proposals, ROI layers, priors, detections or Python layer")
    rest = {*heads, *graph.after(value for i in heads for value in graph.values(i))}
    outputs = [graph.last[name] for name in net.outputs]
    rest &= graph.before(outputs)
    read = {value for i in rest for value in graph.read(i)}
    handed = [v for v in sorted(read) if v[0] not in rest and not (graph.is_input(v[0]) or graph.is_constant(v[0]))]
    kept = list(dict.fromkeys([*handed, *(v for v in outputs if v[0] not in rest)]))
    first = graph.before(kept)
    if not rest:
        raise Error(f'no output depends on "{graph.layers[heads[0]].name}", the first layer of the head')
    if not any(graph.reads[i] for i in first):
        raise Error(f'nothing is left of the net before "{graph.layers[heads[0]].name}", the first layer that is dropped')
    return _part(net, graph, first, kept), _part(net, graph, rest, [v for v in outputs if v[0] in rest])


def _part(net: Net, graph: NetGraph, chosen: Iterable[int], ends: Sequence[Value]) -> Part:
    """Return the part with these layers and the constants that they read."""
    inner = {i for i in chosen if not graph.is_input(i)}
    read = [value for i in sorted(inner) for value in graph.read(i)]
    inner |= {step for step, _ in read if graph.is_constant(step)}
    _check_overwritten(graph, inner, ends)
    inputs = sorted({value for value in [*read, *ends] if value[0] not in inner})
    names = {graph.layers[i].name for i in inner}
    param = caffe_pb2.NetParameter(name=net.name)
    if net.param.force_backward:
        param.force_backward = True
    for value in inputs:
        blob = graph.name(value)
        layer = param.layer.add(name=blob if blob not in names else f"{blob}_input", type="Input", top=[blob])
        layer.input_param.shape.add(dim=net.blobs[blob].shape)
    param.layer.extend(graph.layers[i] for i in sorted(inner))
    layers = [graph.own[i] for i in sorted(inner)]
    check_names_differ(layers, "cutting")
    weights = {layer.name: [blob.read_data() for blob in layer.blobs] for layer in layers if layer.blobs}
    lines = [""] * len(inputs) + [str(layer.source.at("type")) if layer.source else "" for layer in layers]
    outputs = [graph.name(value) for value in ends]
    return Part(param, weights, outputs, lines, net.settings, net.layers[0].fork.name)


def _check_overwritten(graph: NetGraph, inner: Iterable[int], ends: Sequence[Value]) -> None:
    """Raise Error for an end that a later layer of the part changes in place."""
    writers = {blob: i for i in sorted(inner) for blob in graph.layers[i].top}
    for value in ends:
        blob = graph.name(value)
        if writers.get(blob, -1) > value[0]:
            name, maker = graph.layers[writers[blob]].name, graph.layers[value[0]].name
            raise Error(
                f'blob "{blob}" of layer "{maker}", an end of the part, is overwritten in place by layer "{name}": '
                f"end at {BLOB}{blob}, or cut twice"
            )


def join_script(first: Part, rest: Part, first_files: Files, rest_files: Files, cfg: str = "") -> str:
    """Return a script that runs the whole net, to be stored next to both parts' files (names of prototxt and weights).

    cfg: the path of its settings from there.
    """
    # Names come from an untrusted prototxt, so the script has them only as literals.
    options = (f", fork={first.fork!r}" if first.fork else "") + (f", settings=read_settings(HERE / {cfg!r})" if cfg else "")
    return SCRIPT.format(
        first=first_files[0],
        first_weights=first_files[1],
        rest=rest_files[0],
        rest_weights=rest_files[1],
        inputs=[name for name in {**first.inputs, **rest.inputs} if name not in first.outputs],
        handed=[name for name in first.outputs if name in rest.inputs],
        kept=[name for name in first.outputs if name not in rest.inputs],
        options=options,
        settings_import="\nfrom minicaffe.settings import read_settings" if cfg else "",
    )


def run_parts(parts: Sequence[Part], inputs: Mapping[str, Array]) -> Arrays:
    """Run the parts in order, each on the inputs and the outputs of those before it. Return all outputs by name."""
    blobs = dict(inputs)
    made: Arrays = {}
    for part in parts:
        net = part.net()
        for name in net.inputs:
            put_array(net, name, blobs[name])
        net.forward()
        made |= {name: net.blobs[name].read_data().copy() for name in part.outputs}
        blobs |= made
    return made
