"""What differs between the same layer of two nets: fields of the prototxt, weights. Each is tried alone, then all together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minicaffe.formats.values import is_repeated
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .trial import Trial, Variant

CONNECTIONS = ("name", "bottom", "top", "param", "include", "exclude", "phase", "blobs", "loss_weight", "propagate_down")


def parameter_variants(a: Layer, b: Layer) -> Iterator[Variant]:
    """B's fields and weights in A's layer."""
    blocks = {d.name: (d, value) for layer in (a, b) for d, value in layer.param.ListFields() if d.name not in CONNECTIONS}
    fields = []
    for name, (descriptor, _) in blocks.items():
        mine, theirs = getattr(a.param, name), getattr(b.param, name)
        if not descriptor.message_type:
            if mine != theirs:
                fields.append(f"{name}: {mine} in A, {theirs} in B")
            continue
        for field in descriptor.message_type.fields:
            values = [_shown(block, field) for block in (mine, theirs)]
            if values[0] != values[1] and "filler" not in field.name:
                fields.append(f"{name}.{field.name}: {values[0]} in A, {values[1]} in B")
    if fields:
        yield Variant(f"the prototxts differ: {'; '.join(fields)}", lambda trial: _take_param(trial, b))
    weights = [blob.read_data() for blob in b.blobs]
    mine = [blob.read_data() for blob in a.blobs]
    differing = [i for i, (x, y) in enumerate(zip(mine, weights)) if x.shape != y.shape or not np.array_equal(x, y)]
    if differing and len(mine) == len(weights):
        words = f"the weights differ: blob{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}"
        yield Variant(words, lambda trial: _take_blobs(trial, weights))

        def both(trial: Trial) -> None:
            _take_param(trial, b)
            _take_blobs(trial, weights)

        if fields:
            yield Variant(f"{words}; and the prototxts: {'; '.join(fields)}", both)


def _take_param(trial: Trial, b: Layer) -> None:
    new = caffe_pb2.LayerParameter()
    new.CopyFrom(b.param)
    for name in CONNECTIONS:
        new.ClearField(name)  # type: ignore[arg-type]
    new.name = trial.param.name
    new.bottom.extend(trial.param.bottom)
    new.top.extend(trial.param.top)
    trial.param.CopyFrom(new)


def _take_blobs(trial: Trial, blobs: list[Any]) -> None:
    trial.blobs = [blob.copy() for blob in blobs]


def _shown(block: Any, field: Any) -> str:
    value = getattr(block, field.name)
    if field.enum_type:
        names = field.enum_type.values_by_number
        return ", ".join(names[number].name for number in ([value] if isinstance(value, int) else value))
    if isinstance(value, float):
        return f"{value:g}"
    if is_repeated(field) and not field.message_type:
        return ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value) or "nothing"
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
