"""The means and stds of box regression targets, folded into the box layers' weights for a snapshot.

Training regresses normalised targets t' = (t - mean) / std. The weights of a snapshot must give t, so that the net needs no
other numbers in TEST: for each output, weight * std and bias * std + mean.
Source: the snapshot methods of py-faster-rcnn's and py-R-FCN's fast_rcnn/train.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.data.settings import DetectionSettings
from minicaffe.layer import Layer
from minicaffe.layers.roi.psroi_layer import PSROILayer, group_cells
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net

Floats = NDArray[np.floating[Any]]

BOX_LAYER = re.compile(r"(bbox_pred|rfcn_bbox)(_\d+)?")
"""The names of box layers; bbox_pred_4 is a layer whose number of classes was changed."""


@contextmanager
def folded(net: Net, settings: DetectionSettings) -> Iterator[list[str]]:
    """In the block, let net's box layers give unnormalised boxes. After it their exact values are restored.

    Yields the names of the changed layers: none if the settings normalise no targets, or the net has no such layer.
    """
    changes = list(_box_layers(net, settings))
    kept = [[blob.data.copy() for blob in layer.blobs] for layer, _, _ in changes]
    try:
        for layer, means, stds in changes:
            _fold(layer, means, stds)
        yield [layer.name for layer, _, _ in changes]
    finally:
        for (layer, _, _), values in zip(changes, kept, strict=True):
            for blob, value in zip(layer.blobs, values, strict=True):
                blob.data[...] = value


def folded_layers(net: Net, settings: DetectionSettings) -> list[Layer]:
    """Return the layers that folded() changes."""
    return [layer for layer, _, _ in _box_layers(net, settings)]


def unfold(net: Net, settings: DetectionSettings) -> None:
    """Convert the weights of a folded snapshot back for training.

    The weights of outputs whose std is 0 (a class without examples, such as the background) are lost: they stay 0.
    """
    for layer, means, stds in _box_layers(net, settings):
        divisors = np.where(stds == 0, 1, stds)
        _fold(layer, -means / divisors, 1 / divisors)  # b = (b' - mean) / std = b' (1 / std) + (-mean / std)


def fold(
    weight: ArrayLike, bias: ArrayLike, means: ArrayLike, stds: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Return (weight * std, bias * std + mean) for each output: weight (N, ...), bias, means and stds (N,)."""
    weight, bias = np.asarray(weight), np.asarray(bias)
    scale = np.asarray(stds, weight.dtype)
    shift = np.asarray(means, weight.dtype)
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), bias * scale + shift


def _fold(layer: Layer, means: Floats, stds: Floats) -> None:
    weight, bias = (blob.data for blob in layer.blobs)
    weight[...], bias[...] = fold(weight, bias, means, stds)


def per_output(values: Sequence[float], outputs: int, cells: int = 1) -> Floats:
    """Return 4 numbers (or 4 per class) expanded to `outputs` box channels: repeated over classes and over group cells."""
    repeats, rest = divmod(outputs, len(values) * cells)
    if rest or not repeats:
        raise ValueError(f"{outputs} outputs are not a multiple of {len(values)} values times {cells} cells")
    return np.repeat(np.tile(np.asarray(values, np.float64), repeats), cells)  # channel (class * 4 + coordinate) * cells + cell


def _box_layers(net: Net, settings: DetectionSettings) -> Iterator[tuple[Layer, Floats, Floats]]:
    """Yield the layers to fold, each with its outputs' means and stds."""
    train = settings.train
    if train.bbox_reg and train.bbox_normalize_targets:
        statistics = _target_statistics(net, settings)
        for name in net.params:
            if statistics and BOX_LAYER.fullmatch(name):  # by name, as the originals find them
                yield _expanded(net, name, *statistics)
    if train.rpn_normalize_targets and "rpn_bbox_pred" in net.params:
        yield _expanded(net, "rpn_bbox_pred", train.rpn_normalize_means, train.rpn_normalize_stds)


def _target_statistics(net: Net, settings: DetectionSettings) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the means and stds that normalise the net's targets: the settings', or those measured by its data layer."""
    if settings.train.bbox_normalize_targets_precomputed:
        return settings.train.bbox_normalize_means, settings.train.bbox_normalize_stds
    for layer in net.layers:
        means, stds = getattr(layer, "bbox_means", None), getattr(layer, "bbox_stds", None)
        if means is not None and stds is not None:
            return list(np.ravel(means)), list(np.ravel(stds))
    return None


def _expanded(net: Net, name: str, means: Sequence[float], stds: Sequence[float]) -> tuple[Layer, Floats, Floats]:
    """Return a layer to fold, with its outputs' means and stds."""
    layer = net.layer_dict[name]
    if len(layer.blobs) != 2:
        raise layer.error("needs a bias: a snapshot folds the target means into it")
    outputs, cells = layer.blobs[0].shape[0], _group_cells(net, layer)
    try:
        return layer, per_output(means, outputs, cells), per_output(stds, outputs, cells)
    except ValueError as error:
        raise layer.error(f"the target means and stds do not fit: {error}") from error


def _group_cells(net: Net, layer: Layer) -> int:
    """Return group_size^2 of the position-sensitive layer that reads layer's top; 1 without one."""
    blobs = set(net.top_names[layer.name])
    for reader in net.layers:
        if not blobs & set(net.bottom_names[reader.name][:1]):
            continue
        if isinstance(reader, Split):  # it comes before the layers that read its tops
            blobs.update(net.top_names[reader.name])
        elif isinstance(reader, PSROILayer):
            return group_cells(reader.param, type(reader))
    return 1
