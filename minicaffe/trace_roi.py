"""What a trace keeps of a layer that pools rois: the map, the rois, the bins or samples and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .explanations.case import Case
from .explanations.explanation import Explanation
from .layers.psroi_align import PSROIAlign, ps_roi_align_samples, ps_roi_align_steps
from .layers.psroi_layer import PSROILayer
from .layers.psroi_pooling import PSROIPooling, ps_roi_pool_steps
from .layers.roi_align import ROIAlign
from .layers.roi_align_max import roi_align_max_samples, roi_align_max_steps
from .layers.roi_align_mean import roi_align_samples, roi_align_steps
from .layers.roi_geometry import Bins, RoiSteps, clipped_bins
from .layers.roi_layer import RoiLayer
from .layers.roi_pooling import ROIPooling, roi_pool_steps
from .layers.roi_samples import Samples
from .registry import explains

Array = NDArray[Any]

MAP_BYTES = 3 * 2**20
"""Most bytes of a map, of its gradient, and (half of it) of an output."""


@dataclass
class RoiShot:
    """kind: max_bins, max_samples, mean_samples, psroi_bins or psroi_samples. map (C', H, W): the first channels of `channels`
    of that item of the batch. geometry: arrays by the names that the page knows. output, dy (R, C'', PH, PW), dx (C', H, W)."""

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
    explained: list[str] = field(default_factory=list)
    dy: Array | None = None
    dx: Array | None = None

    def notes(self, name: str) -> list[str]:
        """What was left out."""
        notes = []
        if len(self.map) < self.channels:
            notes.append(f"{name}: the first {len(self.map)} of {self.channels} channels of its feature map are kept")
        if self.output is not None and self.output.shape[1] < self.output_dim:
            notes.append(f"{name}: the first {self.output.shape[1]} of {self.output_dim} channels of its output are kept")
        return notes


def roi_shot(layer: RoiLayer, x: Array, rois: Array, y: Array) -> RoiShot:
    """After a forward of layer over x (N, C, H, W) and rois (R, 5) to y."""
    rois = rois.reshape(-1, 5).copy()
    group = layer.group_size if isinstance(layer, PSROILayer) else None
    item = int(rois[0, 0]) if len(rois) else 0
    kind, geometry = _geometry(layer, rois, y.shape[2:], x.shape[2:])
    return RoiShot(
        kind=kind,
        rois=rois,
        spatial_scale=layer.spatial_scale,
        pooled=y.shape[2:],
        group=group,
        output_dim=y.shape[1],
        item=item,
        channels=x.shape[1],
        map=_first_channels(x[item], 0, MAP_BYTES, (group or 1) ** 2),
        output=_first_channels(y, 1, MAP_BYTES // 2, 1),
        geometry=geometry,
    )


def explained(layer: RoiLayer, bottoms: Sequence[str], tops: Sequence[str], arrays: Sequence[Array]) -> list[str]:
    """What `minicaffe explain` says of the first roi's first channel and middle bin; arrays: the bottoms', then the top's."""
    y = arrays[-1]
    explain_it = explains.get(type(layer))
    if explain_it is None or not y.size:
        return []
    case = Case(layer, bottoms, tops, arrays[:-1], [y])
    explanation: Explanation = explain_it(case, (0, 0, y.shape[2] // 2, y.shape[3] // 2))
    return explanation.text().splitlines()


def add_gradients(shot: RoiShot, dy: Array, dx: Array) -> None:
    """After a backward: dy (R, C, PH, PW) and dx (N, C, H, W)."""
    channels = shot.output.shape[1] if shot.output is not None else dy.shape[1]
    shot.dy = dy[:, :channels].astype(np.float32)
    shot.dx = dx[shot.item, : len(shot.map)].astype(np.float32)


def _first_channels(array: Array, axis: int, room: int, multiple: int) -> NDArray[np.float32]:
    """A float32 copy of as many channels as fit, a multiple of `multiple` and at least that many."""
    one = 4 * max(array.size // max(array.shape[axis], 1), 1)
    count = max(room // one // multiple, 1) * multiple
    part: NDArray[np.float32] = np.take(array, np.arange(min(count, array.shape[axis])), axis=axis).astype(np.float32)
    return part


def _geometry(layer: RoiLayer, rois: Array, pooled: tuple[int, ...], size: tuple[int, ...]) -> tuple[str, dict[str, Array]]:
    scale, both, map_size = layer.spatial_scale, (pooled[0], pooled[1]), (size[0], size[1])
    if isinstance(layer, ROIPooling):
        steps = roi_pool_steps(rois, both, scale)
        return "max_bins", _of_bins(steps.halfway, steps, map_size)
    if isinstance(layer, PSROIPooling):
        steps = ps_roi_pool_steps(rois, layer.group_size, scale)
        return "psroi_bins", _of_bins(rois[:, 1:] * rois.dtype.type(scale), steps, map_size)
    if isinstance(layer, PSROIAlign):
        steps, group = ps_roi_align_steps(rois, layer.group_size, scale), layer.group_size
        return "psroi_samples", _of_samples(steps, ps_roi_align_samples(rois, group, scale, map_size, layer.sample_num))
    assert isinstance(layer, ROIAlign)
    if layer.mean:
        ratio, aligned = layer.sampling_ratio, layer.aligned
        samples = roi_align_samples(rois, both, scale, map_size, sampling_ratio=ratio, aligned=aligned)
        return "mean_samples", _of_samples(roi_align_steps(rois, both, scale, aligned=aligned), samples)
    samples = roi_align_max_samples(rois, both, scale, map_size)
    return "max_samples", _of_samples(roi_align_max_steps(rois, both, scale), samples)


def _of_bins(start: Array, steps: RoiSteps, size: tuple[int, int]) -> dict[str, Array]:
    raw = Bins(steps.h.start, steps.h.end, steps.w.start, steps.w.end)._asdict()
    bins = clipped_bins(steps, size)._asdict() | {f"raw_{key}": value for key, value in raw.items()}
    return bins | {"start": start, "rounded": steps.corners, "size": _bin_size(steps)}


def _of_samples(steps: RoiSteps, samples: Samples) -> dict[str, Array]:
    return samples._asdict() | {"start": steps.corners, "size": _bin_size(steps)}


def _bin_size(steps: RoiSteps) -> Array:
    """Height and width of the bins of each roi, (R, 2)."""
    return np.stack([steps.h.length, steps.w.length], axis=1)
