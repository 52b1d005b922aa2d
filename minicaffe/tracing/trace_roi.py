"""The record of an ROI layer in a trace: the map, the rois, the bins or samples, and the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_geometry import Bins, RoiPlan
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping

MAP_BYTES = 3 * 2**20
"""The most bytes of a map and of its gradient; half of it for an output."""

KINDS: dict[type[Layer], str] = {
    ROIPooling: "max_bins",
    ROIWarping: "mean_samples",
    ROIAlignMax: "max_samples",
    ROIAlignMean: "mean_samples",
    PSROIPooling: "psroi_bins",
    PSROIAlign: "psroi_samples",
}
"""The trace page's name for the geometry of each layer. Derived classes may have another geometry."""


@dataclass
class RoiShot:
    """kind: of KINDS. map (C', H, W): the first of `channels` channels of one item of the batch. geometry: arrays by the page's
    names. output, dy (R, C'', PH, PW), dx (C', H, W)."""

    kind: str
    rois: Array
    spatial_scale: float
    pooled: tuple[int, int]
    group: int | None
    output_dim: int
    item: int
    channels: int
    map: Array
    output: Array | None
    geometry: dict[str, Array]
    dy: Array | None = None
    dx: Array | None = None

    def notes(self, name: str) -> list[str]:
        """Notes on reduced data."""
        notes = []
        if len(self.map) < self.channels:
            notes.append(f"{name}: the first {len(self.map)} of {self.channels} channels of its feature map are kept")
        if self.output is not None and self.output.shape[1] < self.output_dim:
            notes.append(f"{name}: the first {self.output.shape[1]} of {self.output_dim} channels of its output are kept")
        return notes


def shows_rois(layer: Layer) -> TypeGuard[RoiLayer]:
    """Whether a trace can show the bins of the layer."""
    return type(layer) in KINDS


def roi_shot(layer: RoiLayer, x: Array, rois: Array, y: Array) -> RoiShot:
    """After forward of a layer that shows_rois, from x (N, C, H, W) and rois (R, 5) to y."""
    rois = rois.reshape(-1, 5).copy()
    group = layer.operator.group_size if isinstance(layer, PSROILayer) else None
    item = int(rois[0, 0]) if len(rois) else 0  # the page shows one image: that of the first roi
    kind = KINDS[type(layer)]
    return RoiShot(
        kind=kind,
        rois=rois,
        spatial_scale=layer.spatial_scale,
        pooled=y.shape[2:],
        group=group,
        output_dim=y.shape[1],
        item=item,
        channels=x.shape[1],
        # Whole groups of score maps: an output channel of which only some bins could be shown would be of no use.
        map=_first_channels(x[item], 0, MAP_BYTES, (group or 1) ** 2),
        output=_first_channels(y, 1, MAP_BYTES // 2, 1),
        geometry=_geometry(kind, layer.operator.plan(rois, x.shape[2:]), layer.spatial_scale),
    )


def add_gradients(shot: RoiShot, dy: Array, dx: Array) -> None:
    """After backward: dy (R, C, PH, PW) and dx (N, C, H, W)."""
    channels = shot.output.shape[1] if shot.output is not None else dy.shape[1]
    shot.dy = dy[:, :channels].astype(np.float32)
    shot.dx = dx[shot.item, : len(shot.map)].astype(np.float32)


def _first_channels(array: Array, axis: int, room: int, multiple: int) -> NDArray[np.float32]:
    """A float32 copy of as many channels as fit: a multiple of `multiple`, at least one."""
    one = 4 * max(array.size // max(array.shape[axis], 1), 1)  # bytes of a channel in float32
    count = max(room // one // multiple, 1) * multiple
    part: NDArray[np.float32] = np.take(array, np.arange(min(count, array.shape[axis])), axis=axis).astype(np.float32)
    return part


def _geometry(kind: str, plan: RoiPlan[Any], spatial_scale: float) -> dict[str, Array]:
    h, w = plan.steps.h, plan.steps.w
    arrays: dict[str, Array] = plan.places._asdict() | {
        "start": plan.steps.corners,
        "size": np.stack([h.length, w.length], axis=1),
    }
    if kind.endswith("bins"):
        raw = Bins(h.start, h.end, w.start, w.end)._asdict()
        # Layers of bins round the corners: the page shows both; steps.corners are the rounded ones.
        arrays |= {"start": plan.rois[:, 1:] * plan.rois.dtype.type(spatial_scale), "rounded": plan.steps.corners}
        arrays |= {f"raw_{key}": value for key, value in raw.items()}
    return arrays
