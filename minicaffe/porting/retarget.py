"""A detection prototxt for another number of classes: all dependent fields are changed together in its text.

    R-CNN heads  cls_score C, bbox_pred 4 C     R-FCN  rfcn_cls C g^2, rfcn_bbox 4 C g^2, and their output_dim
    SSD          conf layers, priors * C        all    Reshape dims, num_classes (in param_str too)

The layers are found by their connections, not by names: heads of R-CNNs and R-FCNs follow ROI layers, and SSDs have conf
layers before the layers at the end. Class-agnostic boxes (8 values) do not change. A layer whose weights change shape gets a
new name, cls_score_N, because weights are loaded by name: an old .caffemodel then loads into all other layers. Tops keep their
names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net, read_text
from minicaffe.layers.roi.psroi_layer import PSROILayer, group_cells
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.layers.ssd.detection_evaluate import DetectionEvaluate
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.multi_box_loss import MultiBoxLoss

from .retarget_plan import SOFTMAX, Heads, PhaseGraph, Plan, outputs_of
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
    """Return the prototxt at path for `classes` classes, including the background.

    boxes: "class" or "agnostic", only needed if 8 box values can mean both (a net of 2 classes). Raises Error if no class count
    is found or counts contradict each other, PrototxtError for a file that cannot be read.
    """
    done = retarget_text(read_text(path), str(path), classes, boxes=boxes)
    if done.old == classes:
        raise Error(f"{path}: it already has {classes} classes")
    return done


def retarget_text(text: str, path: str, classes: int, *, boxes: str = "") -> Retargeted:
    """Return the prototxt `text` for `classes` classes; unchanged, with old == new, if it already has them.

    path: for errors. boxes, and the errors raised: as for retarget.
    """
    if classes < 2:
        raise Error(f"--classes {classes}: give at least 2; the background counts as a class")
    net = parse_net(text, path, warn=False)
    plan = Plan(net, classes, boxes)
    plan_heads(plan)
    plan_ssd(plan)
    plan.python_layers()
    if not plan.old:
        raise Error(
            f"{path}: no class count found: the net has no softmax after a ROI layer, no MultiBoxLoss or DetectionOutput, "
            "and no Python layer with num_classes" + plan.hint()
        )
    if plan.old == classes:
        return Retargeted(text, plan.old, classes, [], {}, plan.agnostic, [])
    plan.rename()
    new_text, edits = edit(text, net, plan.changes, (plan.old, classes))
    return Retargeted(new_text, plan.old, classes, edits, plan.renamed, plan.agnostic, list(plan.notes))


# Heads, and layers that depend on the class count.


SSD_ENDS = (DetectionOutput, MultiBoxLoss, DetectionEvaluate)
"""Layers whose blocks have num_classes."""


def plan_heads(plan: Plan) -> None:
    """Plan all changes of score and box layers after ROI layers, in both phases."""
    graphs = plan.graphs()
    for graph in graphs:
        heads = _heads(graph, graph.of_class(*SOFTMAX))
        for i in heads.layers:
            plan.found(outputs_of(graph.layers[i]), i)
        _resize(plan, graph, heads.layers, 1)
        plan.reshapes(heads.paths(heads.layers), {plan.old: plan.new})
    scores = {change.layer for change in plan.changes}  # the other heads after rois may be boxes
    for graph in graphs:
        heads = _heads(graph, graph.ends)
        plan.reshapes(heads.paths(i for i in heads.layers if i in scores), {plan.old: plan.new})
        boxes = [i for i in heads.layers if i not in scores and plan.old and _is_per_class(plan, graph, i)]
        _resize(plan, graph, boxes, 4)
        # A Reshape of boxes writes 4 C in one dim, or C next to a 4.
        plan.reshapes(heads.paths(boxes), {4 * plan.old: 4 * plan.new, plan.old: plan.new})


def _heads(graph: PhaseGraph, starts: Sequence[int]) -> Heads:
    """Return the heads at or before these layers that are ROI layers or depend on one."""
    dependent = graph.dependent([i for i, kind in graph.kinds.items() if issubclass(kind, RoiLayer)])
    heads = graph.heads(start for start in sorted(starts) if start in dependent)
    heads.layers = [i for i in heads.layers if i in dependent]
    return heads


def _is_per_class(plan: Plan, graph: PhaseGraph, i: int) -> bool:
    """Return True if a head has 4 outputs per class. Add a note on a head with another number."""
    width = outputs_of(graph.layers[i])
    if width == 4 * plan.old and width == 8 and not plan.boxes:
        place, name = plan.net.sources[i].at(), graph.layers[i].name
        question = "boxes of 2 classes, or class-agnostic ones? give --boxes class or --boxes agnostic"
        raise Error(f'{place}: layer "{name}" has 8 outputs: {question}')
    if width == 8 and plan.boxes != "class":
        plan.agnostic = True
    elif width == 4 * plan.old:
        return True
    else:
        plan.note(i, f"not changed: {width} outputs are neither {4 * plan.old} (boxes of {plan.old} classes) nor 8")
    return False


def _resize(plan: Plan, graph: PhaseGraph, heads: Sequence[int], values: int) -> None:
    """Resize heads with this many values per class, and the convolutions before position-sensitive layers."""
    old, new = values * plan.old, values * plan.new
    makers: dict[int, list[int]] = {}
    for i in heads:
        plan.resize(i, old, new)
        if issubclass(graph.kinds[i], PSROILayer) and graph.makers(i):
            # The score maps before it have output_dim * group_size^2 channels.
            makers.setdefault(group_cells(graph.layers[i], graph.kinds[i]), []).append(graph.makers(i)[0])
    for cells, starts in makers.items():
        before = graph.heads(starts)
        for maker in before.layers:
            plan.resize(maker, old * cells, new * cells)
        plan.reshapes(before.paths(before.layers), {old * cells: new * cells})


def plan_ssd(plan: Plan) -> None:
    """Plan all changes of an SSD, in both phases."""
    for graph in plan.graphs():
        makers: dict[int, list[int]] = {1: [], 4: []}
        for end in graph.of_class(*SSD_ENDS):
            _plan_ssd_end(plan, graph, end, makers)
        for values, starts in makers.items():
            _resize_ssd(plan, graph, starts, values)
        for i in graph.of_class(AnnotatedData):
            if plan.old and (file := graph.layers[i].annotated_data_param.label_map_file):
                plan.note(i, f"its label_map_file {file} must list the new classes")


def _plan_ssd_end(plan: Plan, graph: PhaseGraph, end: int, makers: dict[int, list[int]]) -> None:
    """Change the layer at the end, and add the makers of its scores (1 value per class) and boxes (4 values per class)."""
    layer, kind = graph.layers[end], graph.kinds[end]
    block = getattr(layer, kind.param_block[0])
    if not block.num_classes or len(layer.bottom) == 1:  # with one bottom it is YOLOv2's
        return
    plan.found(block.num_classes, end)
    plan.change(end, f"{kind.param_block[0]}.num_classes", plan.old, plan.new)
    if kind is DetectionOutput and block.save_output_param.label_map_file:
        plan.note(end, f"its label_map_file {block.save_output_param.label_map_file} must list the new classes")
    if kind is not DetectionEvaluate and len(graph.makers(end)) > 2:  # its bottoms: boxes, scores, priors
        makers[1].append(graph.makers(end)[1])
        if not block.share_location:
            makers[4].append(graph.makers(end)[0])


def _resize_ssd(plan: Plan, graph: PhaseGraph, starts: list[int], values: int) -> None:
    """Resize the layers at or before these, with this many values per class and prior. Raises Error for other numbers."""
    heads = graph.heads(starts)
    for i in heads.layers:
        count, each = outputs_of(graph.layers[i]), values * plan.old
        if count % each:
            place, name = plan.net.sources[i].at(), graph.layers[i].name
            raise Error(f'{place}: layer "{name}" has num_output {count}, not a multiple of {each} for {plan.old} classes')
        plan.resize(i, count, count // each * values * plan.new)
    plan.reshapes(heads.paths(heads.layers), {plan.old: plan.new})
