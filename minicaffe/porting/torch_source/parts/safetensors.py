"""Reading weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch


def read_safetensors(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file: 8 bytes of length, a JSON header, the values."""
    data = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, end = (start + offset for offset in info["data_offsets"])
            kind = {"F32": torch.float32, "F64": torch.float64}[info["dtype"]]
            count = (end - first) // kind.itemsize
            flat = torch.frombuffer(data, dtype=kind, count=count, offset=first) if count else torch.zeros(0, dtype=kind)
            tensors[name] = flat.reshape(info["shape"])
    return tensors
