"""Differences between the same layer of two nets: prototxt fields and weights. Each is tried alone, then both together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from minicaffe.blob import Array
from minicaffe.formats.values import is_repeated
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .trial import Trial, Variant

CONNECTIONS = ("name", "bottom", "top", "param", "include", "exclude", "phase", "blobs", "loss_weight", "propagate_down")


def parameter_variants(a: Layer, b: Layer) -> Iterator[Variant]:
    """A's layer with B's fields and weights."""
    fields = _differing_fields(a.param, b.param)
    if fields:
        yield Variant(f"the prototxts differ: {'; '.join(fields)}", lambda trial: _take_param(trial, b))
    weights = [blob.read_data() for blob in b.blobs]
    differing = [i for i, (blob, array) in enumerate(zip(a.blobs, weights)) if not np.array_equal(blob.read_data(), array)]
    if differing and len(a.blobs) == len(weights):
        words = f"the weights differ: blob{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}"
        yield Variant(words, lambda trial: _take_blobs(trial, weights))

        def both(trial: Trial) -> None:
            _take_param(trial, b)
            _take_blobs(trial, weights)

        if fields:
            yield Variant(f"{words}; and the prototxts: {'; '.join(fields)}", both)


def _differing_fields(a: caffe_pb2.LayerParameter, b: caffe_pb2.LayerParameter) -> list[str]:
    blocks = {d.name: d for param in (a, b) for d, _ in param.ListFields() if d.name not in CONNECTIONS}
    found = []
    for name, descriptor in blocks.items():
        ours, theirs = getattr(a, name), getattr(b, name)
        if not descriptor.message_type:
            if ours != theirs:
                found.append(f"{name}: {ours} in A, {theirs} in B")
            continue
        for field in descriptor.message_type.fields:
            values = [_shown(block, field) for block in (ours, theirs)]
            if values[0] != values[1] and "filler" not in field.name:  # weights are there already
                found.append(f"{name}.{field.name}: {values[0]} in A, {values[1]} in B")
    return found


def _take_param(trial: Trial, b: Layer) -> None:
    new = caffe_pb2.LayerParameter()
    new.CopyFrom(b.param)
    for name in CONNECTIONS:
        new.ClearField(name)  # type: ignore[arg-type]
    new.name = trial.param.name
    new.bottom.extend(trial.param.bottom)
    new.top.extend(trial.param.top)
    trial.param.CopyFrom(new)


def _take_blobs(trial: Trial, blobs: list[Array]) -> None:
    trial.blobs = [blob.copy() for blob in blobs]


def _shown(block: Message, field: FieldDescriptor) -> str:
    value = getattr(block, field.name)
    if field.enum_type:
        names = field.enum_type.values_by_number
        return ", ".join(names[number].name for number in ([value] if isinstance(value, int) else value))
    if isinstance(value, float):
        return f"{value:g}"
    if is_repeated(field) and not field.message_type:
        return ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value) or "nothing"
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
