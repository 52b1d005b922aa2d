"""The generated module beside its net: outputs, and gradients of the weights and the inputs. Needs torch."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import numpy as np

from minicaffe.blob import Arrays
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, difference, differences, run_of

from .source import Source


def compare_source(net: Net, path: str | os.PathLike[str], made: Source) -> list[Difference]:
    """Run the net and the module in the file on the net's inputs: a Difference for each output, for the gradient of each weight
    and of each input, all for one random gradient of the outputs. Gradients are left out where proposals change places."""
    try:
        import torch
    except ImportError:
        raise Error('running the generated file needs torch: pip install "minicaffe[torch]"') from None
    module = _module(path).load().eval().to(torch.float64 if net.dtype == np.float64 else torch.float32)
    inputs = {name: torch.from_numpy(net.blobs[name].data.copy()) for name in net.inputs}
    for tensor in inputs.values():
        tensor.requires_grad_()
    outputs = module(*inputs.values())
    found = differences(run_of(net, outputs), {name: tensor.detach().numpy() for name, tensor in outputs.items()})
    if any(one.note or not one.agrees for one in found):
        return found
    return found + _gradients(net, made, module, inputs, outputs)


def _gradients(net: Net, made: Source, module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> list[Difference]:
    import torch

    random = np.random.default_rng(0)
    seeds: Arrays = {name: random.standard_normal(net.blobs[name].shape).astype(net.dtype) for name in net.outputs}
    flowing = [name for name in net.outputs if outputs[name].requires_grad]
    if not flowing:
        return []
    net.force_backward()
    net.forward()
    net.clear_param_diffs()
    for name, seed in seeds.items():
        net.blobs[name].diff[...] = seed if name in flowing else 0
    net.backward()
    sum((outputs[name] * torch.from_numpy(seeds[name])).sum() for name in flowing).backward()
    found = []
    for name, tensor in module.named_parameters():
        layer, _, kind = name.rpartition(".")
        weights = net.params[made.layers[layer]]
        ours = weights[min(("weight", "bias").index(kind), len(weights) - 1)].diff
        theirs = np.zeros(tensor.shape, net.dtype) if tensor.grad is None else tensor.grad.numpy()
        ours = ours.T if ours.shape != theirs.shape and ours.T.shape == theirs.shape else ours
        found.append(difference(f"d {name}", ours.reshape(theirs.shape), theirs))
    for name, tensor in inputs.items():
        if tensor.grad is not None and tensor.grad.abs().any():
            found.append(difference(f"d {name}", net.blobs[name].diff.copy(), tensor.grad.numpy()))
    return found


def _module(path: str | os.PathLike[str]) -> Any:
    """The file as a module of its own."""
    name = "minicaffe_generated"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module
