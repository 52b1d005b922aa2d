"""Middlebury's .flo files of optical flow: "PIEH", width, height (int32), then u and v of each pixel, row by row (float32).

u is to the right and v down, in pixels; beyond 1e9 the flow is unknown. All numbers are little-endian.
Source: Baker et al. 2011, "A database and evaluation methodology for optical flow", and its file format's description.
"""

from __future__ import annotations

import os
import struct

import numpy as np

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.files import opened, replacing

MAGIC = b"PIEH"
"""The float32 202021.25, as a check of the byte order."""
UNKNOWN = 1e9
"""Larger values mark pixels whose flow is unknown."""
_HEADER = struct.Struct("<4sii")


def write_flo(path: str | os.PathLike[str], flow: Array) -> None:
    """Write flow (2, H, W), u and v in pixels, as a .flo file. Raises Error."""
    if flow.ndim != 3 or len(flow) != 2 or not flow.size:
        raise Error(f"{os.fspath(path)}: a flow is (2, H, W), got shape {flow.shape}")
    height, width = flow.shape[1:]
    values = np.ascontiguousarray(flow.transpose(1, 2, 0), "<f4")
    with replacing(path) as draft:
        draft.write_bytes(_HEADER.pack(MAGIC, width, height) + values.tobytes())


def read_flo(path: str | os.PathLike[str]) -> Array:
    """Return the flow (2, H, W) float32 of a .flo file, u and v in pixels.

    Raises Error for another format and for a file whose length is not that of its size; OSError.
    """
    name = os.fspath(path)
    with opened(path) as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or head[:4] != MAGIC:
            raise Error(f'{name}: not a .flo file: it does not begin with "PIEH"')
        _, width, height = _HEADER.unpack(head)
        if width < 1 or height < 1:
            raise Error(f"{name}: a flow of {width} x {height} pixels")
        limits.check(f"{name}: the flow", width * height, "pixels")
        size, wanted = os.fstat(file.fileno()).st_size, _HEADER.size + 8 * width * height
        if size != wanted:
            raise Error(f"{name}: a flow of {width} x {height} pixels takes {wanted:,} bytes, but the file has {size:,}")
        values = np.frombuffer(file.read(8 * width * height), "<f4").reshape(height, width, 2)
    flow: Array = values.transpose(2, 0, 1).astype(np.float32)
    return flow
