"""The catalogue as a table in Markdown, docs/layers.md: bottoms, tops, parameters and support of every layer type.

    python -m minicaffe layers --markdown > docs/layers.md

The facts come from the class; support by explain, the ONNX export and minicaffe.torch from their tables (registry.py).
Needs PyTorch.
"""

from __future__ import annotations

from minicaffe.layer import Count, Layer, gpu_methods_apply
from minicaffe.layers import CATALOGUE
from minicaffe.layers.data.input import Input
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.registry import explains, explains_gradient, exports, is_built_in, torch_form

HEAD = """# The layers

The {types} names of the built-in layer types. `minicaffe layers` describes each type in one line; the classes in
[layers/](../layers) give formulas, shapes and errors.

- **parameters**: the blocks of the prototxt's `layer` that the type reads. `python_param`: its `param_str`, as in the Python
  layer of py-faster-rcnn that the type replaces.
- **CPU backward**: *none* if no gradient is defined, as for labels, boxes and counts; a dash if there is no bottom.
  *the class's*: the class of a Python layer decides.
- **GPU**: *on the CPU* if a net in GPU mode runs the layer on the CPU, as Caffe does with a layer that has no GPU code.
- **explain**, **ONNX**: whether `minicaffe explain` supports the type, forward and backward, and whether
  `minicaffe export` has operators for it. *an input*: an input of the model replaces the layer.
- **torch**: whether `minicaffe.torch.to_torch` builds it from PyTorch's operators. *our layer*: it runs minicaffe's layer on
  the CPU.

A dash means no. Decorators register your classes in each column; see [python.md](python.md#a-layer-of-your-own).

| type | bottoms | tops | parameters | CPU forward | CPU backward | GPU | explain | ONNX | torch |
|---|---|---|---|---|---|---|---|---|---|
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
    has_gpu = layer.forward_gpu is not Layer.forward_gpu and gpu_methods_apply(layer)
    on_gpu = forward if forward != "yes" else "yes" if has_gpu else "on the CPU"
    takes = [_count(layer.num_bottom), _count(layer.num_top), blocks or DASH]
    return [name, *takes, forward, _backward(layer, forward), on_gpu, *(_tools(layer) if forward == "yes" else 3 * [forward])]


def takes(layer: type[Layer]) -> str:
    """Its bottoms and tops and what it has, in a line."""
    has_gpu = layer.forward_gpu is not Layer.forward_gpu and gpu_methods_apply(layer)
    has = {
        "forward": True,
        "backward": _backward(layer, "yes") == "yes",
        "on the GPU": has_gpu,
        "explain": layer in explains,
        "ONNX": layer in exports or issubclass(layer, Input),
    }
    counts = f"bottoms: {_count(layer.num_bottom)}; tops: {_count(layer.num_top)}"
    return f"{counts}; has: {', '.join(what for what, there in has.items() if there)}"


def _tools(layer: type[Layer]) -> list[str]:
    """explain, ONNX, torch."""
    explained = "yes" if layer in explains and (layer in explains_gradient or _only_indices(layer)) else DASH
    exported = "an input" if issubclass(layer, Input) else "yes" if layer in exports else DASH
    if issubclass(layer, Input | DataLayer):
        return [explained, exported, "an input"]
    runs = is_built_in(layer) and layer.num_top != 0
    return [explained, exported, "yes" if layer in torch_form else "our layer" if runs else DASH]


def _only_indices(layer: type[Layer]) -> bool:
    """Whether no bottom gets a gradient."""
    most = layer.num_bottom if isinstance(layer.num_bottom, int) else layer.num_bottom[1]
    return most is not None and set(range(most)) <= set(layer.index_bottoms)


def _backward(layer: type[Layer], forward: str) -> str:
    if forward != "yes":
        return forward
    return "yes" if layer.has_gradient else DASH if layer.num_bottom == 0 else "none"


def _count(count: Count) -> str:
    least, most = (count, count) if isinstance(count, int) else count
    if most is None:
        return "any" if least == 0 else f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"
