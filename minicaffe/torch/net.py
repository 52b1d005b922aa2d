"""to_torch: a Net as a torch Module with named parameters, which trains, saves and loads like any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.mode import TRAIN
from minicaffe.net import Net
from minicaffe.parameters import check_names, names_near, weight_layers

from .forms import Form, form, is_source, weight_names


@dataclass(frozen=True)
class Step:
    """One layer: the name of its Module, the names of its blobs, and its loss weights."""

    module: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    loss_weights: tuple[float, ...]


@dataclass
class Weight:
    """One learnable blob: its tensor in the Module, its blob in the net, and its multipliers."""

    tensor: Tensor
    blob: Blob
    lr_mult: float
    decay_mult: float


class CaffeNet(nn.Module):
    """A Net's layers as Modules under the layers' names ("." becomes "_"), made by `to_torch`.

    ``module(*inputs)`` or ``module(data=..., im_info=...)`` returns a dict of the outputs' tensors.

    Parameters
    ----------
    net : Net
        The net.
    forms : mapping of str to callable
        Makers of Modules for your own types, as for `to_torch`.

    Attributes
    ----------
    inputs : list of str
        The net's inputs and the tops of the layers that read data.
    outputs : list of str
        The tops that no layer reads.
    steps : list of Step
        The layers in order.
    layer_modules : dict of str to str
        The Module's name of each layer with weights, by layer name.
    """

    def __init__(self, net: Net, forms: Mapping[str, Form]) -> None:
        super().__init__()
        self.inputs: list[str] = []
        self.outputs = list(net.outputs)
        self.steps: list[Step] = []
        self._weights: list[Weight] = []
        modules: dict[int, str] = {}
        for node in net.nodes:
            layer, bottoms, tops = node.layer, node.bottom_names, node.top_names
            if is_source(layer):
                self.inputs.extend(tops)
                continue
            module = form(layer, node.bottoms, node.tops, forms)
            name = self._new_name(layer.name)
            self.add_module(name, module)
            self.steps.append(Step(name, tuple(bottoms), tuple(tops), tuple(layer.loss_weights)))
            if layer.blobs:
                modules[id(layer)] = name
                self._join_weights(net, layer, module)
        named = weight_layers(net.layers).items()
        self.layer_modules = {name: modules[id(layer)] for name, layer in named if id(layer) in modules}
        self.train(net.phase == TRAIN)

    def _new_name(self, layer: str) -> str:
        """Return a Module's name for a layer: without dots, and different from all attributes of this class."""
        name = layer.replace(".", "_") or "_"
        while hasattr(self, name):
            name += "_"
        return name

    def _join_weights(self, net: Net, layer: Layer, module: nn.Module) -> None:
        """Record the layer's weights; weights shared with an earlier layer become one Parameter."""
        for i, name in enumerate(weight_names(module)):
            blob = layer.blobs[i]
            # Blobs that share a `param` name share memory.
            owner = next((weight for weight in self._weights if weight.blob.shares_data_with(blob)), None)
            if owner is None:
                specs = layer.param.param
                mults = (specs[i].lr_mult, specs[i].decay_mult) if i < len(specs) else (1.0, 1.0)
                self._weights.append(Weight(getattr(module, name), blob, *mults))
            elif owner.blob.shape != blob.shape:
                raise layer.error(f"shares a weight of shape {owner.blob.shape} as {blob.shape}: PyTorch cannot", f"param[{i}]")
            else:
                setattr(module, name, owner.tensor)

    def forward(self, *arrays: Tensor, blobs: Sequence[str] = (), **inputs: Tensor) -> dict[str, Tensor]:
        """Return the tensors of the outputs and of the given blobs.

        Parameters
        ----------
        *arrays : torch.Tensor
            The inputs in order.
        blobs : sequence of str, optional
            Names of blobs to return in addition.
        **inputs : torch.Tensor
            Inputs by name.

        Returns
        -------
        dict of str to torch.Tensor
            The tensors by blob name.

        Raises
        ------
        Error
            An input is missing or unknown, or the net lacks a blob.
        """
        wanted = list(dict.fromkeys([*self.outputs, *blobs]))
        values, _ = self._run(arrays, inputs, set(wanted))
        missing = [name for name in wanted if name not in values]
        if missing:
            raise Error(f'the net has no blob "{missing[0]}"{names_near(missing[0], values)}')
        return {name: values[name] for name in wanted}

    def loss(self, *arrays: Tensor, **inputs: Tensor) -> Tensor:
        """Return the loss: the sum of the tops that have a loss_weight, each times its loss_weight.

        Parameters
        ----------
        *arrays : torch.Tensor
            The inputs in order.
        **inputs : torch.Tensor
            Inputs by name.

        Returns
        -------
        torch.Tensor
            The loss, a scalar.

        Raises
        ------
        Error
            An input is missing or unknown, or no top has a loss_weight.
        """
        _, losses = self._run(arrays, inputs, set())
        if not losses:
            raise Error("the net has no loss: no top has a loss_weight")
        return torch.stack(losses).sum()

    def _run(
        self, arrays: Sequence[Tensor], inputs: dict[str, Tensor], wanted: set[str]
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Run all layers; return the final values of the blobs wanted, and the terms of the loss."""
        if len(arrays) > len(self.inputs):
            raise Error(f"{len(arrays)} inputs given, the net has {len(self.inputs)}: {', '.join(self.inputs)}")
        values = {**dict(zip(self.inputs, arrays)), **inputs}
        check_names(values, self.inputs, "inputs", "the net's inputs")
        last = {name: i for i, step in enumerate(self.steps) for name in step.bottoms}
        losses: list[Tensor] = []
        for i, step in enumerate(self.steps):
            module, bottoms = getattr(self, step.module), [values[name] for name in step.bottoms]
            tops = [module(x) for x in bottoms] if getattr(module, "takes_each", False) else module(*bottoms)
            tops = (tops,) if isinstance(tops, Tensor) else tops
            for name in step.bottoms:
                # before the tops are stored, because in place they have the same name
                if last[name] == i and name not in wanted:
                    values.pop(name, None)
            values.update(zip(step.tops, tops))
            losses += [weight * top.sum() for weight, top in zip(step.loss_weights, tops) if weight]
        return values, losses

    def parameter_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Return parameter groups for a torch optimizer, by lr_mult and decay_mult.

        Frozen weights are left out.

        Parameters
        ----------
        lr : float
            The learning rate that lr_mult multiplies.
        weight_decay : float, default 0
            The weight decay that decay_mult multiplies.

        Returns
        -------
        list of dict
            Groups with "params", "lr" and "weight_decay".
        """
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for weight in self._weights:
            if isinstance(weight.tensor, nn.Parameter) and weight.tensor.requires_grad:
                groups.setdefault((weight.lr_mult, weight.decay_mult), []).append(weight.tensor)
        return [
            {"params": tensors, "lr": lr * lr_mult, "weight_decay": weight_decay * decay_mult}
            for (lr_mult, decay_mult), tensors in groups.items()
        ]

    @torch.no_grad()
    def copy_to(self, net: Net) -> None:
        """Write the weights into a Net with the same layers, to save them as a caffemodel.

        Parameters
        ----------
        net : Net
            The net whose blobs are overwritten.

        Raises
        ------
        Error
            A weight has another shape in the net.
        """
        layers = weight_layers(net.layers)
        for layer, name in self.layer_modules.items():
            module = getattr(self, name)
            blobs = layers[layer].blobs
            for i, (weight, blob) in enumerate(zip(weight_names(module), blobs, strict=True)):
                tensor = getattr(module, weight)
                if tuple(tensor.shape) != blob.shape:
                    raise Error(f"{layer}, blob {i}: shape {tuple(tensor.shape)} here, {blob.shape} in the net")
                blob.data[...] = tensor.detach().to("cpu", torch.float64).numpy()


def to_torch(net: Net, forms: Mapping[str, Form] | None = None) -> CaffeNet:
    """Return a net, with copies of its weights, as a torch Module.

    The Module is in training mode if the net's phase is TRAIN.

    Parameters
    ----------
    net : Net
        The net.
    forms : mapping of str to callable, optional
        Makers of Modules for your own types, by layer type (or a Python layer's class).
        A maker is a function of (layer, bottoms, tops), or minicaffe.torch.OurLayer.

    Returns
    -------
    CaffeNet
        The Module.

    Raises
    ------
    LayerError
        A layer has no form. The error names the layer and its place.
    """
    return CaffeNet(net, forms or {})
