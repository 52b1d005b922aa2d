"""A net as readable PyTorch source, which needs only torch, and its weights as safetensors.

write_source(net, "model.py")      # and model.safetensors next to it
from model import load; module = load()
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minicaffe.detection.task import class_names
from minicaffe.errors import Error, on_one_line
from minicaffe.files import replacing_together
from minicaffe.formats.named_arrays import write_safetensors
from minicaffe.layers.data.input import Input
from minicaffe.layers.proposal.dynamic_tops import dynamic_rois
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.tracing.net_state import state_kept
from minicaffe.version import __version__

from . import detection, forms, functions  # noqa: F401  # their functions are entries of the table
from .check import check_source, compare_source, in_float64
from .parts import parts
from .source import Source, literal, source

__all__ = ["Source", "compare_source", "in_float64", "source", "source_of", "write_source"]

HEAD = '''"""{title}, as PyTorch source written by minicaffe {version}. It needs torch alone; the weights are in {weights}.

    from {module} import load
    net = load().eval()
    outputs = net({inputs})      # {{name: tensor}}
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
'''
CLASS_NAMES = "CLASS_NAMES"
LOAD = '''
def load(weights: str = str(Path(__file__).with_name("{weights}"))) -> Net:
    """The net with its weights."""
    net = Net()
    net.load_state_dict(read_safetensors(weights), assign=True)
    return net
'''


def write_source(net: Net, path: str | os.PathLike[str], classes: Sequence[str] | None = None) -> Source:
    """Write the net as `path`, and its weights next to it with the suffix .safetensors. Return the Source.

    classes: the names of the net's classes, which become the module's CLASS_NAMES; by default the usual ones for their number.
    Raises Error for a TRAIN net and for another number of names, LayerError for layers without a form, all named, and for lines
    that do not compile or, where PyTorch is installed, do not build. Nothing is written then.
    """
    target = Path(path)
    weights = target.with_suffix(".safetensors").name
    text, made = source_of(net, target.stem, weights, class_names(net, classes))
    with replacing_together(target) as draft:
        write_safetensors(draft.with_name(weights), made.tensors)
        draft.write_text(text, encoding="utf-8")
        check_source(draft, made)
    return made


def source_of(net: Net, module: str, weights: str, classes: Sequence[str] | None = None) -> tuple[str, Source]:
    """Return the text of a module of this name with weights in this file, and the Source. Raises write_source's errors.

    classes: the names that become the module's CLASS_NAMES.
    """
    if net.phase != TEST:
        raise Error("PyTorch source is made of a net in TEST; this one is in TRAIN")
    with state_kept(net):
        net.reshape()
        return _source_of(net, module, weights, classes)


def _source_of(net: Net, module: str, weights: str, classes: Sequence[str] | None) -> tuple[str, Source]:
    made = Source()
    _check(net)
    made.part("read_safetensors")
    if classes:
        made.constant(CLASS_NAMES, classes)
    names = {name: made.variable(name) for name in net.inputs}
    values: dict[str, str] = dict(names)
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, Input):
            continue
        if isinstance(layer, Split):
            values.update(dict.fromkeys(node.top_names, values[node.bottom_names[0]]))
            continue
        bottoms = [values[name] for name in node.bottom_names]
        shapes = [top.shape for top in node.tops]
        result = source.get(type(layer))(made, layer, bottoms, shapes)  # type: ignore[misc]
        comment = " -> ".join(["", *("x".join(map(str, shape)) for shape in shapes)])
        made.assign(layer, node.top_names, result, comment.removeprefix(" -> "))
        values.update({top: made.variable(top) for top in node.top_names})
    outputs = {name: values[name] for name in _outputs(net)}
    made.drop_unread(outputs.values())
    return _text(net, made, names, outputs, module, weights), made


def _outputs(net: Net) -> list[str]:
    rois = [top for layer in net.layers if dynamic_rois(layer) for top in net.top_names[layer.name]]
    return [*net.outputs, *(top for top in rois if top not in net.outputs)]


def _check(net: Net) -> None:
    """Raise LayerError, which names all layers without a form."""
    lacking = [layer for layer in net.layers if not isinstance(layer, Input | Split) and source.get(type(layer)) is None]
    if lacking:
        more = "".join(f'; {layer.type} layer "{layer.name}"' for layer in lacking[1:20])
        raise lacking[0].error(f"has no form in PyTorch source{more}", "type")


def _text(net: Net, made: Source, inputs: dict[str, str], outputs: dict[str, str], module: str, weights: str) -> str:
    title = on_one_line(net.name or "A Caffe net").replace("\\", "").replace('"', "'")
    head = HEAD.format(title=title, version=__version__, weights=weights, module=module, inputs=", ".join(inputs.values()))
    carried = [parts()[name].text for name in made.parts]
    init = [f"self.{name} = {text}" + (f"  # {comment}" if comment else "") for name, (text, comment) in made.modules.items()]
    given = ", ".join(f"{name}: torch.Tensor" for name in inputs.values())
    shapes = [f"{name} {'x'.join(map(str, net.blobs[blob].shape))}" for blob, name in inputs.items()]
    lines = [*(f"{line}  # {comment}" for _, line, comment in made.lines)]
    returned = ", ".join(f"{blob!r}: {name}" for blob, name in outputs.items())
    body = "\n".join(
        [
            "class Net(nn.Module):",
            f'    """{title}: {", ".join(shapes)}."""',
            "",
            "    def __init__(self) -> None:",
            "        super().__init__()",
            *(f"        {line}" for line in init),
            "",
            f"    def forward(self, {given}) -> dict[str, torch.Tensor]:",
            *(f"        {line}" for line in lines),
            f"        return {{{returned}}}",
        ]
    )
    constants = made.constants.items()
    tables = ["\n".join([f"{name} = [", *(f"    {literal(row)}," for row in rows), "]", ""]) for name, rows in constants]
    return "\n\n".join([head.rstrip() + "\n", *carried, *tables, body + "\n", LOAD.format(weights=weights).strip() + "\n"])
