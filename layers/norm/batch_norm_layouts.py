"""BatchNorm's blobs: BVLC's three, NVIDIA's three or five of 0.17, its five of 0.15, Intel's four or five.

The prototxt's fields decide, then the number and shapes of the stored blobs: scale_bias is a field of 0.17 alone; both versions
have scale_filler and bias_filler, and 0.15 has five blobs without any field. Source: NVIDIA's batch_norm_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from minicaffe.blob import Array
from minicaffe.errors import ways
from minicaffe.proto import caffe_pb2

Layout = tuple[str, ...]

BVLC: Layout = ("mean_sum", "variance_sum", "factor")
NVIDIA_17: Layout = ("mean", "variance", "correction", "scale", "bias")
NVIDIA_15: Layout = ("scale", "bias", "mean", "variance", "correction")
INTEL: Layout = (*BVLC, "scale", "bias")
"""The layout of Intel's; with bias_term: false, the last one is missing."""
LEARNT = ("scale", "bias")
LAYOUTS = "BVLC's has 3 blobs (mean and variance as sums, factor), Intel's 4 or 5, NVIDIA's of 0.15 5, of 0.17 3 or 5"
BY_FORK = "by the fork"
NVIDIA_LEAST_EPS = 1e-5
"""The least eps of 0.17."""
TITLES = {
    BVLC: "BVLC's", NVIDIA_17: "NVIDIA's of 0.17", NVIDIA_17[:3]: "NVIDIA's of 0.17 without scale_bias",
    NVIDIA_15: "NVIDIA's of 0.15", INTEL: "Intel's", INTEL[:4]: "Intel's without bias",
}  # fmt: skip


def layout_of(param: caffe_pb2.LayerParameter, fork: str = "") -> tuple[Layout, str]:
    """Return the layout that the prototxt names, else the fork's, and the reason for it.

    It is 0.17's if it could be either of NVIDIA's.
    """
    block = param.batch_norm_param
    fillers = [name for name in ("scale_filler", "bias_filler") if block.HasField(name)]
    if block.HasField("scale_bias"):
        return NVIDIA_17 if block.scale_bias or fillers else NVIDIA_17[:3], "batch_norm_param has scale_bias"
    if fillers:
        return NVIDIA_15 if fork == "nv15" else NVIDIA_17, f"batch_norm_param has {fillers[0]}"
    if len(param.param) in (len(INTEL) - 1, len(INTEL)):
        told = NVIDIA_15 if len(param.param) == len(NVIDIA_15) and fork != "intel" else INTEL[: len(param.param)]
        return told, f"{len(told)} param blocks"
    return {"nv15": NVIDIA_15, "nv17": NVIDIA_17[:3]}.get(fork, BVLC), BY_FORK if fork in ("nv15", "nv17") else "no other sign"


def stored_layout(param: caffe_pb2.LayerParameter, shapes: Sequence[Sequence[int]], fork: str = "") -> tuple[Layout, str]:
    """Return the layout of stored blobs of these shapes, and the reason for it.

    It is layout_of's, unless the blobs have another layout that the fields allow. Raises ValueError for blobs of no layout, of
    another than a field names, and of one channel that may be either NVIDIA's.
    """
    told, why = layout_of(param, fork)
    counts = [math.prod(shape) for shape in shapes]
    stored = f"{len(counts)} stored blobs"
    if len(counts) == len(BVLC):
        by_hint = why == BY_FORK and told == NVIDIA_15
        return (BVLC, stored) if by_hint else (told, why)
    if len(counts) == len(INTEL) - 1 and not param.batch_norm_param.HasField("scale_bias"):
        return INTEL[:4], stored
    if len(counts) != len(NVIDIA_15):
        raise ValueError(f"{LAYOUTS}, but the weights store {len(counts)}")
    if param.batch_norm_param.HasField("scale_bias"):
        return told, why  # if the stored blobs differ, `unlike` reports it
    if counts[-1] == 1 < counts[2]:
        return NVIDIA_15, stored
    if counts[2] == 1 < counts[-1]:
        return (INTEL if fork == "intel" else NVIDIA_17), stored
    # With one channel, all blobs have one number.
    if told == NVIDIA_17 and fork != "nv17":
        way = ways("--fork nv15 or nv17", "Net's fork=")
        raise ValueError(f"of one channel, 5 blobs may be NVIDIA 0.15's or 0.17's: give {way}")
    return (NVIDIA_17 if fork == "nv17" else NVIDIA_15), stored


def unlike(layout: Layout, shapes: Sequence[Sequence[int]]) -> str:
    """Return the other layout that blobs of these shapes must have, in words; "" if they may have this one, or have none."""
    counts = [math.prod(shape) for shape in shapes]
    shown = {(3, 2): BVLC, (5, 2): NVIDIA_17, (5, 4): NVIDIA_15}
    ones = [i for i, count in enumerate(counts) if count == 1]
    found = shown.get((len(counts), ones[0])) if len(ones) == 1 else None
    if found is None or (len(counts) == len(layout) and layout[ones[0]] in ("factor", "correction")):
        return ""
    return (
        f"it is {TITLES[layout]}, with the blobs {', '.join(layout)}, but the weights are {TITLES[found]}: {', '.join(found)}"
    )


def statistics(blobs: Mapping[str, Array]) -> tuple[Array, Array]:
    """Return the mean (C,) and variance (C,) from the blobs by name."""
    if "mean" in blobs:
        # 1 in NVIDIA's files; Intel's files have the same shapes, but sums and a factor
        correction = blobs["correction"][0] or 1
        return blobs["mean"] / correction, blobs["variance"] / correction
    return global_statistics(*(blobs[name] for name in BVLC))


def least_eps(layout: Layout) -> float:
    """Return the least eps."""
    return NVIDIA_LEAST_EPS if layout[:3] == NVIDIA_17[:3] else 0.0


def global_statistics(mean_sum: Array, var_sum: Array, factor: Array) -> tuple[Array, Array]:
    """Return the mean (C,) and variance (C,) from BVLC's sums (C,), (C,) and factor (1,)."""
    inverse = 1 / factor[0] if factor[0] != 0 else factor[0]  # 0 before training: mean and variance are then 0
    return mean_sum * inverse, var_sum * inverse


def uses_global_statistics(param: caffe_pb2.LayerParameter, layout: Layout, test: bool) -> bool:
    """Return whether the stored statistics are used instead of the batch's.

    0.17 reads use_global_stats but uses the phase alone.
    """
    block = param.batch_norm_param
    if layout[:3] == NVIDIA_17[:3] or not block.HasField("use_global_stats"):
        return test
    return block.use_global_stats
