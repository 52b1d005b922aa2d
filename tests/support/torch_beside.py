"""A net compared with its torch Module: outputs and gradients, and the distance of each from float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from minicaffe import Net
from minicaffe.torch import to_torch


def differences(net: Net) -> Iterator[tuple[str, float]]:
    """(what, relative difference) of the outputs, then of the gradients of the first input and of every weight."""
    module = to_torch(net)
    inputs = [torch.tensor(net.blobs[name].data) for name in net.inputs]
    inputs[0].requires_grad_()
    for parameter in module.parameters():
        parameter.requires_grad_()
    ours = net.forward()
    theirs = module(*inputs)
    for name, tensor in theirs.items():
        yield name, relative(ours[name], tensor)
    random = np.random.default_rng(2)
    tops = {name: random.normal(size=blob.shape).astype(net.dtype) for name, blob in ours.items()}
    net.backward(**tops)
    asked = [(theirs[name], torch.from_numpy(top)) for name, top in tops.items() if theirs[name].requires_grad]
    torch.autograd.backward(*map(list, zip(*asked)))
    yield "gradient of the input", relative(net.blobs[net.inputs[0]].diff, inputs[0].grad)
    for weight in module._weights:
        if isinstance(weight.tensor, torch.nn.Parameter):
            yield "gradient of a weight", relative(weight.blob.diff, weight.tensor.grad)


def from_float64(net: Net, exact: Net) -> tuple[float, float]:
    """Return the largest relative differences of our and PyTorch's float32 outputs from float64's, at equal rois.

    exact: the same net in float64; it is given each side's own rois.
    """
    wanted = [*net.outputs, "rois"]
    ours = {key: np.array(value) for key, value in net.forward(blobs=["rois"]).items()}
    with torch.no_grad():
        theirs = to_torch(net)(*[torch.tensor(net.blobs[key].data) for key in net.inputs], blobs=["rois"])
    for key, blobs in net.params.items():
        for blob, other in zip(exact.params[key], blobs, strict=True):
            blob.data[...] = other.data
    for key in net.inputs:
        exact.blobs[key].reshape(*net.blobs[key].shape)
        exact.blobs[key].data[...] = net.blobs[key].data
    found = []
    for side in (ours, {key: value.numpy() for key, value in theirs.items()}):
        values = _at_rois(exact, side["rois"])
        found.append(max(relative(values[key], torch.from_numpy(np.asarray(side[key], float))) for key in wanted))
    return found[0], found[1]


def _at_rois(net: Net, rois: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of net where its Proposal gives these rois."""

    def put(i: int) -> None:
        if "rois" in net.top_names[net.layers[i].name]:
            net.blobs["rois"].reshape(*rois.shape)
            net.blobs["rois"].data[...] = rois

    net.after_forward(put)
    try:
        return {key: np.array(value) for key, value in net.forward(blobs=["rois"]).items()}
    finally:
        net.remove_hook(put)


def relative(ours: np.ndarray, theirs: torch.Tensor | None) -> float:
    """Return the largest difference, by our largest number; no tensor counts as zeros."""
    tensor = np.zeros_like(ours) if theirs is None else theirs.detach().numpy()
    if tensor.shape != ours.shape:
        return float("inf")
    return float(np.abs(ours - tensor).max(initial=0) / max(np.abs(ours).max(initial=0), 1e-30))
