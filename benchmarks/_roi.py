"""The ROI layers that the benchmarks time, on the CPU and on a GPU, with torchvision's function of the same inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import TRAIN, Blob, Phase
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import create

Array = NDArray[Any]

POOLED, SCALE = 7, 1 / 16


@dataclass(frozen=True)
class Case:
    """An ROI layer: its prototxt, the channels of its map, whether its forward keeps an argmax, and torchvision's function of
    (torchvision.ops, x, rois), with whether it computes the same."""

    name: str
    layer: str
    channels: int = 512
    argmax: bool = False
    peer: Callable[[Any, Any, Any], Any] | None = None
    same: bool = True


CASES = [
    Case(
        "ROIPooling",
        f'type: "ROIPooling" roi_pooling_param {{ pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE} }}',
        argmax=True,
        peer=lambda ops, x, rois: ops.roi_pool(x, rois, POOLED, SCALE),
    ),
    Case(
        "ROIAlign AVE, 2 samples",
        f'type: "ROIAlign" roi_align_param {{ pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE} '
        "pool: AVE sampling_ratio: 2 }",
        peer=lambda ops, x, rois: ops.roi_align(x, rois, POOLED, SCALE, sampling_ratio=2, aligned=False),
    ),
    Case(
        "ROIAlign MAX",
        f'type: "ROIAlign" roi_align_param {{ pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE} pool: MAX }}',
        argmax=True,
    ),
    *(
        Case(
            f"PSROIPooling, {dim * POOLED**2} channels",
            f'type: "PSROIPooling" psroi_pooling_param {{ output_dim: {dim} group_size: {POOLED} spatial_scale: {SCALE} }}',
            channels=dim * POOLED**2,
            peer=lambda ops, x, rois: ops.ps_roi_pool(x, rois, POOLED, SCALE),
            same=False,
        )
        for dim in (21, 81)
    ),
    Case(
        "PSROIAlign, 1029 channels",
        f'type: "PSROIAlign" psroi_align_param {{ output_dim: 21 group_size: {POOLED} spatial_scale: {SCALE} }}',
        channels=21 * POOLED**2,
        peer=lambda ops, x, rois: ops.ps_roi_align(x, rois, POOLED, SCALE, 2),
        same=False,
    ),
]


def inputs(channels: int, count: int, size: tuple[int, int], sides: tuple[float, float] | None = None) -> tuple[Array, Array]:
    """Return a map, and boxes in an image of 16 times its size: from 32 pixels to half of it, or these fractions."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, channels, *size), dtype=np.float32)
    least = [32.0, 32.0] if sides is None else [16 * extent * sides[0] for extent in size]
    most = [max(33, 8 * extent) if sides is None else 16 * extent * sides[1] for extent in size]
    lengths = [random.uniform(a, b, count) for a, b in zip(least, most)]
    firsts = [random.uniform(0, 1, count) * np.maximum(16 * extent - length, 1) for extent, length in zip(size, lengths)]
    (height, width), (top, left) = lengths, firsts
    return x, np.stack([0 * left, left, top, left + width, top + height], axis=1).astype(np.float32)


class Roi:
    """One of our ROI layers with its blobs. nbytes: the least that forward or backward must move."""

    def __init__(self, case: Case, x: Array, rois: Array, phase: Phase = TRAIN) -> None:
        param = parse_net(f'layer {{ name: "roi" bottom: "x" bottom: "rois" top: "y" {case.layer} }}').param.layer[0]
        self.bottom, self.top = [Blob(x.shape), Blob(rois.shape)], [Blob()]
        self.layer = create(param, phase=phase)
        self.bottom[0].data[...], self.bottom[1].data[...] = x, rois
        self.layer.connect(self.bottom, self.top)
        out = self.top[0].count
        self.top[0].diff[...] = np.random.default_rng(1).standard_normal(self.top[0].shape, dtype=np.float32)
        self.nbytes = 4 * (x.size + rois.size + out * (2 if case.argmax else 1))

    def forward(self) -> None:
        self.layer.forward_pass(self.bottom, self.top)

    def backward(self) -> None:
        self.layer.backward_pass(self.top, [True, False], self.bottom)

    def results(self) -> dict[str, Array]:
        """Copies of y and dx, after a forward and a backward in the current mode."""
        self.forward()
        self.backward()
        return {"forward": self.top[0].read_data().copy(), "backward": self.bottom[0].read_diff().copy()}


def check_against_peer(case: Case, ours: Roi, theirs: Any) -> None:
    """Exit unless torchvision agrees, except for a few bins whose edges round differently."""
    found, expected = ours.results(), theirs.results()
    for direction, y in expected.items():
        agree = float(np.mean(np.isclose(found[direction], y, rtol=1e-4, atol=1e-4)))
        print(f"{case.name}, {direction}: {agree:.3%} of the numbers agree with torchvision's", file=sys.stderr)
        if agree < 0.99:
            raise SystemExit(f"{case.name}, {direction}: torchvision computes something else")
