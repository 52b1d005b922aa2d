"""Boxes of tensors: rois in the forms that PyTorch code has them in, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minicaffe import ops
from minicaffe.errors import Error


def rois_table(rois: Tensor | Sequence[Tensor], like: Tensor) -> Tensor:
    """rois as (R, 5) of like's type, on its device; like: the map (N, C, H, W).

    rois: (R, 5) or (R, 5, 1, 1) with the image's index first; (R, 4): all of image 0; or a list of (R_i, 4), one for each
    image. Raises Error for anything else.
    """
    if isinstance(rois, Tensor):
        table = rois.flatten(1) if rois.ndim == 4 else rois
        if table.ndim != 2 or table.shape[1] not in (4, 5):
            raise Error(f"rois must have shape (R, 5) or (R, 4), got {tuple(rois.shape)}")
        return (table if table.shape[1] == 5 else _of_image(table, 0)).detach().to(like)
    if len(rois) != len(like):
        raise Error(f"a list of rois has one tensor for each image: got {len(rois)} for {len(like)} images")
    for i, boxes in enumerate(rois):
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise Error(f"rois[{i}] must have shape (R, 4), got {tuple(boxes.shape)}")
    return torch.cat([like.new_zeros(0, 5), *(_of_image(boxes.detach().to(like), i) for i, boxes in enumerate(rois))])


def _of_image(boxes: Tensor, image: int) -> Tensor:
    return torch.cat([boxes.new_full((len(boxes), 1), image), boxes], dim=1)


def nms(dets: Tensor, scores: Tensor | float, threshold: float | None = None) -> Tensor:
    """Indices (K,) of the boxes that are kept, best first: nms(boxes (N, 4), scores (N,), threshold), or nms(dets (N, 5),
    threshold) with the score in column 4.

    Areas count both ends (+1), and a box goes when it overlaps a better one by more than threshold, as in py-faster-rcnn
    and maskrcnn-benchmark; torchvision.ops.nms has no +1. Computed by the CPU, in float for half and bfloat16.
    """
    if threshold is None:
        if isinstance(scores, Tensor) and scores.ndim:
            raise Error("nms(boxes, scores, threshold) or nms(dets, threshold): there is no threshold")
        table, threshold = dets, float(scores)
    else:
        if not isinstance(scores, Tensor) or dets.ndim != 2 or dets.shape[1] != 4 or scores.shape != dets.shape[:1]:
            raise Error(f"boxes must be (N, 4) and scores (N,), got {_shape(dets)} and {_shape(scores)}")
        table = torch.cat([dets, scores.to(dets)[:, None]], dim=1)
    table = table.detach().cpu()
    kept = ops.nms((table if table.dtype == torch.float64 else table.float()).numpy(), threshold)
    return torch.from_numpy(kept.astype("int64")).to(dets.device)


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else value
