"""Rows of a table on the GPU, by index: rows.cu."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Blob
from minicaffe.errors import LayerError
from minicaffe.layer import Layer

from .device import current, launch


def take(layer: Layer, index: Blob, field: str, table: int, rows: int, y: Blob, *, bias: int = 0) -> None:
    """y (items, width...) = row index[item] of the table (rows, width...), + bias. A number of index that is not a whole one
    in [0, rows) raises LayerError, which names field, at the next synchronisation."""
    if y.count:
        items, numbers = index.count, index.device_data("read")

        def error(last: int) -> LayerError:
            number = np.ravel(index.read_data())[items - last]
            return layer.error(f"{number:g} is not a whole number in [0, {rows})", field)

        bad = current().current_stream.watch(error)
        width, to = y.count // items, y.device_data("write")
        launch("rows.take", layer.dtype, y.count, y.count, items, width, numbers, rows, table, bias, to, bad)


def add(layer: Layer, index: Blob, dy: Blob, rows: int, total: int) -> None:
    """Add row `item` of dy (items, width...) to row index[item] of total (rows, width...)."""
    if dy.count:
        width = dy.count // index.count
        sizes = (dy.count, index.count, width, index.device_data("read"), rows)
        launch("rows.add", layer.dtype, dy.count, *sizes, dy.device_diff("read"), total)
