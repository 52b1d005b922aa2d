"""The catalogue as a table in Markdown, docs/layers.md: what every layer type takes, gives, reads and computes.

    python -m minicaffe layers --markdown > docs/layers.md

Everything is read off the classes' facts.
"""

from __future__ import annotations

from .layer import Count, Layer
from .layers import CATALOGUE
from .registry import is_built_in

HEAD = """# The layers

The layer types that are built in, {types} names in all. `minicaffe layers` says what each one does; formulas, shapes and errors
stand at the classes, in [layers/](../layers).

- **parameters**: the blocks of the prototxt's `layer` that the type reads. `python_param`: its `param_str`, as in the Python
  layer of py-faster-rcnn that the type stands in for.
- **CPU backward**: *none* where no gradient is defined, as of labels, boxes and counts; a dash where there is nothing to
  compute one for. *the class's*: a Python layer computes what its class does.
- **GPU**: *on the CPU* where a net in GPU mode runs the layer on the CPU, as Caffe does with a layer that has no GPU code.

| type | bottoms | tops | parameters | CPU forward | CPU backward | GPU |
|---|---|---|---|---|---|---|
"""
DASH = "–"


def markdown() -> str:
    """The text of docs/layers.md."""
    types = sorted(((kind, layer) for kind, layer in CATALOGUE.items() if is_built_in(layer)), key=lambda item: item[0].lower())
    return HEAD.format(types=len(types)) + "".join(f"| {' | '.join(row(kind, layer))} |\n" for kind, layer in types)


def row(kind: str, layer: type[Layer]) -> list[str]:
    """The cells of one type."""
    forward = "yes" if layer.forward_cpu is not Layer.forward_cpu else "the class's"
    name = f"`{kind}`" if layer.type == kind else f"`{kind}`, the same as `{layer.type}`"
    blocks = ", ".join(f"`{block}`" for block in sorted(layer.param_block))
    on_gpu = forward if forward != "yes" else "yes" if layer.forward_gpu is not Layer.forward_gpu else "on the CPU"
    return [name, _count(layer.num_bottom), _count(layer.num_top), blocks or DASH, forward, _backward(layer, forward), on_gpu]


def _backward(layer: type[Layer], forward: str) -> str:
    if forward != "yes":
        return forward
    return "yes" if layer.has_gradient else DASH if layer.num_bottom == 0 else "none"


def _count(count: Count) -> str:
    least, most = (count, count) if isinstance(count, int) else count
    if most is None:
        return "any" if least == 0 else f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"
