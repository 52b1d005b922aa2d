"""Comparison of the generated module with its net: outputs, and gradients of the weights and the inputs. Needs torch."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np

from minicaffe.blob import Arrays
from minicaffe.errors import Error, install
from minicaffe.layer import Layer
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import put_weights, weights_of
from minicaffe.porting.agreement import Difference, difference, differences, run_of

from .source import Source


def compare_source(net: Net, path: str | os.PathLike[str], made: Source) -> list[Difference]:
    """Run the net and the module in the file on the net's inputs. Return a Difference for each output and each gradient.

    The gradients of one random gradient of the outputs are compared for each weight and input. Both sides compute them in
    float64, where rounding moves no maximum and no ReLU.
    """
    try:
        import torch
    except ImportError:
        raise Error(f"running the generated file needs torch: {install('torch')}") from None
    inputs = {name: torch.from_numpy(net.blobs[name].data.copy()) for name in net.inputs}
    with _naming_layers(path, made), torch.no_grad():
        module = _module(path, _compiled(path)).load().eval()
        outputs = {name: tensor.numpy() for name, tensor in module(*inputs.values()).items()}
    found = differences(run_of(net, outputs), outputs)
    if any(net.blobs[name].shape != array.shape for name, array in outputs.items()):
        return found
    exact = {name: tensor.double().requires_grad_() for name, tensor in inputs.items()}
    double = net if net.dtype == np.float64 else in_float64(net)
    module.double()
    positions = {id(layer): i for i, layer in enumerate(net.layers)}  # the same in `double`
    return found + _gradients(double, made, module, exact, positions)


def in_float64(net: Net) -> Net:
    """Return the net in float64, with the same weights and inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        double = Net(net.param, TEST, dtype=np.float64, settings=net.settings, strict=False, fork=net.fork)
    put_weights(double, weights_of(net))
    for name in net.inputs:
        double.blobs[name].reshape(net.blobs[name].shape)
        double.blobs[name].data[...] = net.blobs[name].data
    double.reshape()
    return double


def _gradients(net: Net, made: Source, module: Any, inputs: dict[str, Any], positions: Mapping[int, int]) -> list[Difference]:
    """Compare the gradients of weights and inputs. positions: indices in net of the layers of the source, by their ids."""
    import torch

    outputs = module(*inputs.values())
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
        layer = name.rpartition(".")[0]
        weights = net.layers[positions[id(made.layers[layer])]].blobs
        own = [key for key in made.tensors if key.rpartition(".")[0] == layer]
        blobs = [blob.diff for blob in weights]
        ours = made.gradients[name](blobs) if name in made.gradients else blobs[own.index(name)]
        theirs = np.zeros(tensor.shape, net.dtype) if tensor.grad is None else tensor.grad.numpy()
        ours = ours.T if ours.shape != theirs.shape and ours.T.shape == theirs.shape else ours
        # A bias before a BatchNorm on batch statistics gets only rounding noise, so the layer's largest gradient is the scale.
        scale = max(float(np.abs(blob.diff).max(initial=0)) for blob in weights)
        found.append(difference(f"d {name}", ours.reshape(theirs.shape), theirs, scale=scale))
    for name, tensor in inputs.items():
        if tensor.grad is not None and tensor.grad.abs().any():
            found.append(difference(f"d {name}", net.blobs[name].diff.copy(), tensor.grad.numpy(), scale=0))
    return found


def check_source(path: str | os.PathLike[str], made: Source) -> None:
    """Compile the file and, where PyTorch is installed, build its module. Raises LayerError that names the layer at fault."""
    with _naming_layers(path, made):
        code = _compiled(path)
        try:
            import torch
        except ImportError:
            return
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay
            _module(path, code).load().eval()


@contextmanager
def _naming_layers(path: str | os.PathLike[str], made: Source) -> Iterator[None]:
    """Turn an exception of the file's code into a LayerError of the layer at fault. A user's form may write anything."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message = f"the written PyTorch source fails: {reason}; convert the net with minicaffe.torch.to_torch instead"
        layer = _layer_at_fault(os.fspath(path), made, error)
        raise (layer.error(message, "type") if layer else Error(f"{os.fspath(path)}: {message}")) from error


def _layer_at_fault(path: str, made: Source, error: Exception) -> Layer | None:
    """Return the layer whose line fails, or whose module is named in the error."""
    text = Path(path).read_text(encoding="utf-8").splitlines()
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    numbers = [error.lineno] if isinstance(error, SyntaxError) and error.filename == path else frames
    starts = [(layer, f"self.{name} = ") for name, layer in made.layers.items()]
    starts += [(layer, line) for layer, line, _ in made.lines]
    for line in (text[number - 1].strip() for number in numbers if number):
        if found := next((layer for layer, start in starts if line.startswith(start)), None):
            return found
    dotted = (word.split(".")[:-1] for word in re.split(r"[^\w.]+", str(error)))  # conv1.weight
    named = {part for parts in dotted for part in parts}
    return next((layer for name, layer in made.layers.items() if name in named), None)


def _compiled(path: str | os.PathLike[str]) -> CodeType:
    return compile(Path(path).read_bytes(), os.fspath(path), "exec", dont_inherit=True)


def _module(path: str | os.PathLike[str], code: CodeType) -> Any:
    """Run the file's code as a module. An import would leave bytecode next to the file."""
    name = "minicaffe_generated"
    module = ModuleType(name)
    module.__file__ = os.fspath(path)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    finally:
        del sys.modules[name]
    return module
