"""CRC-32C, the checksum in LevelDB's files, in NumPy, at hundreds of MB per second.

A CRC is linear: a row's CRC is the exclusive or of one number per byte, which depends on the byte and its distance from the
row's end. The numbers are looked up for many rows at once, and the rows are then combined one by one.
Source: RFC 3720, appendix B.4.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78
"""0x1EDC6F41 with its bits reversed."""
ROW, PIECE = 512, 1 << 14
"""Bytes of a row, and of the rows looked up at once."""
SHORT = 64
"""Shorter data is processed byte by byte."""


def crc32c(data: bytes | memoryview) -> int:
    """The CRC-32C of data."""
    effects, places, first_four, last = _tables()
    checksum = 0xFFFFFFFF
    if len(data) < SHORT:
        for byte in data:
            checksum = last[checksum & 255 ^ byte] ^ checksum >> 8
        return checksum ^ 0xFFFFFFFF
    a, b, c, d = first_four
    padded = np.zeros(-(-len(data) // ROW) * ROW, np.uint8)  # leading zeros do not change the CRC
    begin = len(padded) - len(data)
    padded[begin:] = np.frombuffer(data, np.uint8)
    padded[begin : begin + 4] ^= 255  # equivalent to an initial checksum of ones
    checksum = 0
    for i in range(0, len(padded), PIECE):
        rows = padded[i : i + PIECE].reshape(-1, ROW)
        for row in np.bitwise_xor.reduce(effects.take(rows + places, mode="wrap"), axis=1).tolist():  # "wrap" checks no index
            # To go on from a CRC is to XOR it into the next four bytes and begin with 0.
            checksum = a[checksum & 255] ^ b[checksum >> 8 & 255] ^ c[checksum >> 16 & 255] ^ d[checksum >> 24] ^ row
    return checksum ^ 0xFFFFFFFF


@cache
def _tables() -> tuple[NDArray[np.uint32], NDArray[Any], list[list[int]], list[int]]:
    """Each byte's contribution at each position of a row, (ROW * 256,); each position's index in it, (ROW,); the first four
    positions and the last one as lists."""
    effects = np.empty((ROW, 256), np.uint32)
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = np.where(last & 1, last >> 1 ^ np.uint32(POLYNOMIAL), last >> 1)
    effects[-1] = last
    for place in range(ROW - 2, -1, -1):
        effects[place] = effects[place + 1] >> 8 ^ last[effects[place + 1] & 255]
    return effects.reshape(-1), np.arange(0, ROW * 256, 256), effects[:4].tolist(), last.tolist()
