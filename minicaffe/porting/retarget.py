"""A detection prototxt for another number of classes: all dependent fields changed together in its text.

    R-CNN heads  cls_score C, bbox_pred 4 C     R-FCN  rfcn_cls C g^2, rfcn_bbox 4 C g^2, and their output_dim
    SSD          conf layers, priors * C        all    Reshape dims, num_classes (in param_str too)

Class-agnostic boxes (8 values) do not change. A layer whose weights change shape gets a new name, cls_score_N, because weights
are loaded by name: an old .caffemodel then loads into all other layers. Tops keep their names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net, read_text

from .retarget_heads import plan_heads, plan_ssd
from .retarget_plan import Plan
from .retarget_text import Edited, edit


@dataclass(frozen=True)
class Retargeted:
    """The new text, the class counts (including the background), and the contents of a report."""

    text: str
    old: int
    new: int
    edits: list[Edited]
    renamed: dict[str, str]
    agnostic: bool
    notes: list[str]


def retarget(path: str | os.PathLike[str], classes: int, *, boxes: str = "") -> Retargeted:
    """The prototxt at path for `classes` classes, including the background.

    boxes: "class" or "agnostic", only needed if 8 box values can mean both (a net of 2 classes). Raises Error if no class count
    is found or counts contradict each other, PrototxtError for a file that cannot be read.
    """
    if classes < 2:
        raise Error(f"--classes {classes}: give at least 2; the background counts as a class")
    text = read_text(path)
    net = parse_net(text, str(path), warn=False)
    plan = Plan(net, classes, boxes)
    plan_heads(plan)
    plan_ssd(plan)
    plan.python_layers()
    if not plan.old:
        raise Error(
            f"{path}: no class count found: the net has no softmax behind a ROI layer, no MultiBoxLoss or DetectionOutput, "
            "and no Python layer with num_classes" + plan.hint()
        )
    if plan.old == classes:
        raise Error(f"{path}: it already has {classes} classes")
    plan.rename()
    new_text, edits = edit(text, net, plan.changes, (plan.old, classes))
    return Retargeted(new_text, plan.old, classes, edits, plan.renamed, plan.agnostic, list(plan.notes))
