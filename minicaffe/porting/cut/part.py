"""Cut a net: the layers between two places become a net whose inputs have the shapes that the whole net's blobs have."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from minicaffe.blob import Array
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error
from minicaffe.files import replacing
from minicaffe.formats.prototxt import to_text
from minicaffe.layers.data.input import Input
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import check_names_differ, put_weights
from minicaffe.proto import caffe_pb2

from .graph import BLOB, Graph, Value, graph_of
from .limits import beyond_limits
from .targets import DOCUMENTS, TARGETS, does_nothing, is_head, lacks, unlisted

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Part:
    """Some layers of a net, behind an Input layer for each blob that they read of others; outputs: what the cut asked for.

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
        """The part as a Net, with its weights."""
        net = Net(self.param, TEST, settings=self.settings, fork=self.fork)
        put_weights(net, self.weights)
        return net

    def for_target(self, target: str) -> Part:
        """The part in the subset of a target (targets.py, limits.py): without the Dropouts that it does not list. Raises Error
        with all other layers that it does not list, and all fields and sizes beyond its limits."""
        wrong = [unlisted(zip(self.param.layer, self.lines, strict=True), target)]
        left_out = [layer.type.lower() not in TARGETS[target] and does_nothing(layer) for layer in self.param.layer]
        kept = [i for i, out in enumerate(left_out) if not out]
        param = caffe_pb2.NetParameter()
        param.CopyFrom(self.param)
        del param.layer[:]
        param.layer.extend(self.param.layer[i] for i in kept)
        part = replace(self, param=param, lines=[self.lines[i] for i in kept])
        wrong.append(part._beyond(target))
        if any(wrong):
            raise Error("\n".join(filter(None, wrong)))
        return part

    def _beyond(self, target: str) -> str:
        """What is beyond the target's limits, "" for nothing."""
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


def cut(net: Net, starts: Sequence[str] = (), ends: Sequence[str] = ()) -> Part:
    """The part of a TEST net that computes `ends` of `starts` (default: all inputs, all outputs).

    A name is a layer's (a start takes the blobs that it reads, an end those that it makes), else a blob's: its last value;
    "blob:NAME" is the blob where both have the name. With starts the part has the layers that depend on one of them and that
    an end depends on; whatever else these read becomes an input too. Raises Error, naming what is unknown, not connected, or
    overwritten in place.
    """
    graph = graph_of(net)
    behind = [_from(graph, name) for name in starts]
    reached = set().union(*behind) if starts else set(range(len(graph.steps)))
    wanted = {name: _to(graph, name) for name in ends}
    for name, values in wanted.items():
        if not any(step in reached for step, _ in values):
            raise Error(f"--to {name} does not depend on --from {', '.join(starts)}")
    if not ends:
        wanted = {"the outputs": [graph.last[name] for name in net.outputs if graph.last[name][0] in reached]}
    values = list(dict.fromkeys(value for group in wanted.values() for value in group))
    chosen = reached & graph.before(values)
    for name, steps in zip(starts, behind, strict=True):
        if not steps & chosen:
            raise Error(f"--from {name} leads to none of {', '.join(f'--to {end}' for end in ends) or 'the outputs'}")
    return _part(net, graph, chosen, values)


def cut_at(net: Net, blob: str) -> tuple[Part, Part]:
    """The net in two parts, the second of which reads this blob, its last value, and what else the first makes for it."""
    rest = cut(net, [f"{BLOB}{blob}"])
    return cut(net, ends=[f"{BLOB}{name}" for name in rest.inputs if name not in net.inputs]), rest


def blob_at(net: Net, part: float) -> str | None:
    """The first blob, from this part of the layers on, that is no output: where cut_at cuts. None where there is none."""
    inner = [layer for layer in net.layers if not isinstance(layer, Split | Input) and layer.param.bottom]
    blobs = (top for layer in inner[int(len(inner) * part) :] for top in layer.param.top)
    return next((blob for blob in blobs if blob not in net.outputs), None)


def _from(graph: Graph, name: str) -> set[int]:
    """The steps that a start begins: a layer's own and those behind it, or those behind a blob."""
    step, value = graph.step_or_value(name)
    return graph.behind([value]) if value is not None else {step, *graph.behind(graph.values(step))}  # type: ignore[arg-type]


def _to(graph: Graph, name: str) -> list[Value]:
    step, value = graph.step_or_value(name)
    values = [value] if value is not None else graph.values(step)  # type: ignore[arg-type]
    if not values:
        raise Error(f'--to {name}: the layer "{name}" makes no blob')
    return values


def has_head(net: Net) -> bool:
    """Whether the net has a layer of a detector's head, where drop_head cuts."""
    return any(is_head(layer.param) for layer in net.layers)


def drop_head(net: Net, target: str = "") -> tuple[Part, Part]:
    """A detector in two parts: up to the first layers that chips lack (and, with a target, those that it lacks), and these with
    all that depends on them, which reads the first's outputs. Raises Error where one of the two would be empty."""
    graph = graph_of(net)
    heads = [i for i, step in enumerate(graph.steps) if is_head(step.param) or (target and lacks(target, step.param))]
    heads = [i for i in heads if not isinstance(graph.steps[i].layer, Input)]
    if not heads:
        raise Error("the net has no layer of a head: no proposals, ROI layers, priors or detections, and no Python layer")
    rest = {*heads, *graph.behind(value for i in heads for value in graph.values(i))}
    outputs = [graph.last[name] for name in net.outputs]
    rest &= graph.before(outputs)
    read = {value for i in rest for value in graph.steps[i].reads}
    handed = [v for v in sorted(read) if v[0] not in rest and not _is_given(graph, v)]
    kept = list(dict.fromkeys([*handed, *(v for v in outputs if v[0] not in rest)]))
    first = graph.before(kept)
    if not rest:
        raise Error(f'no output depends on "{graph.steps[heads[0]].layer.name}", the first layer of the head')
    if not any(graph.steps[i].reads for i in first):
        raise Error(f'nothing is left of the net before "{graph.steps[heads[0]].layer.name}", the first layer that is dropped')
    return _part(net, graph, first, kept), _part(net, graph, rest, [v for v in outputs if v[0] in rest])


def _is_given(graph: Graph, value: Value) -> bool:
    """Whether a value is an input, or made of nothing."""
    return isinstance(graph.steps[value[0]].layer, Input) or graph.steps[value[0]].is_constant


def _part(net: Net, graph: Graph, chosen: Iterable[int], ends: Sequence[Value]) -> Part:
    """The part with these steps, and with the constants that they read."""
    inner = {i for i in chosen if not isinstance(graph.steps[i].layer, Input)}
    read = [value for i in sorted(inner) for value in graph.steps[i].reads]
    inner |= {step for step, _ in read if graph.steps[step].is_constant}
    _check_overwritten(graph, inner, ends)
    inputs = sorted({value for value in [*read, *ends] if value[0] not in inner})
    names = {graph.steps[i].layer.name for i in inner}
    param = caffe_pb2.NetParameter(name=net.name)
    if net.param.force_backward:
        param.force_backward = True
    for value in inputs:
        blob = graph.name(value)
        layer = param.layer.add(name=blob if blob not in names else f"{blob}_input", type="Input", top=[blob])
        layer.input_param.shape.add(dim=net.blobs[blob].shape)
    steps = [graph.steps[i] for i in sorted(inner)]
    param.layer.extend(step.param for step in steps)
    check_names_differ([step.layer for step in steps], "cutting")
    weights = {step.layer.name: [blob.read_data() for blob in step.layer.blobs] for step in steps if step.layer.blobs}
    sources = [step.layer.source for step in steps]
    lines = [""] * len(inputs) + [str(source.at("type")) if source else "" for source in sources]
    outputs = [graph.name(value) for value in ends]
    return Part(param, weights, outputs, lines, net.settings, net.layers[0].fork.name)


def _check_overwritten(graph: Graph, inner: Iterable[int], ends: Sequence[Value]) -> None:
    """Raise Error for an end that a later layer of the part changes in place."""
    writers = {blob: i for i in sorted(inner) for blob in graph.steps[i].param.top}
    for value in ends:
        blob = graph.name(value)
        if writers.get(blob, -1) > value[0]:
            name, maker = graph.steps[writers[blob]].layer.name, graph.steps[value[0]].layer.name
            raise Error(
                f'blob "{blob}" as layer "{maker}" makes it is overwritten in place by layer "{name}", which an end needs: '
                f"end at {BLOB}{blob}, or cut twice"
            )
