"""What reading a damaged weights file must give."""

from __future__ import annotations

from pathlib import Path

from minicaffe.errors import WeightsError
from minicaffe.formats.weights import read_weights


def check_damaged(path: Path, content: bytes) -> None:
    """Written to path, content must read as blobs whose arrays have the shapes they declare, or raise a WeightsError that names
    the file."""
    path.write_bytes(content)
    try:
        layers = read_weights(path).layers
    except WeightsError as error:
        assert str(path) in str(error)
        return
    for layer in layers:
        for stored in layer.blobs:
            assert stored is None or stored.array.shape == stored.shape
