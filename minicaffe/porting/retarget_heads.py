"""The heads of R-CNNs and R-FCNs: found by what reads what, not by layer names."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.errors import Error
from minicaffe.registry import group_cells, outputs_of

from .retarget_graph import Graph, Heads
from .retarget_plan import SOFTMAX, Plan


def plan_heads(plan: Plan) -> None:
    """The classes' and boxes' layers behind ROI layers, in both phases."""
    graphs = plan.graphs()
    for graph in graphs:
        heads = _heads(graph, graph.of_class(*SOFTMAX))
        for i in heads.layers:
            plan.found(outputs_of(graph.layers[i]), i)
        _resize(plan, graph, heads.layers, 1)
        plan.reshapes(heads.ways(heads.layers), {plan.old: plan.new})
    scores = {change.layer for change in plan.changes}
    for graph in graphs:
        heads = _heads(graph, graph.ends)
        plan.reshapes(heads.ways(i for i in heads.layers if i in scores), {plan.old: plan.new})
        boxes = [i for i in heads.layers if i not in scores and plan.old and _for_each_class(plan, graph, i)]
        _resize(plan, graph, boxes, 4)
        plan.reshapes(heads.ways(boxes), {4 * plan.old: 4 * plan.new, plan.old: plan.new})


def _heads(graph: Graph, starts: Sequence[int]) -> Heads:
    """The heads before these layers that lie behind a ROI layer or are one."""
    rois = [i for i, kind in graph.kinds.items() if kind.is_roi_layer]
    behind = graph.behind(rois) | set(rois)
    heads = graph.heads(start for start in sorted(starts) if start in behind)
    heads.layers = [i for i in heads.layers if i in behind]
    return heads


def _for_each_class(plan: Plan, graph: Graph, i: int) -> bool:
    """Whether a head gives 4 values for each class; notes one that gives something else."""
    width = outputs_of(graph.layers[i])
    if width == 4 * plan.old and width == 8 and not plan.boxes:
        place, name = plan.net.sources[i].at(), graph.layers[i].name
        question = "boxes of 2 classes, or class-agnostic ones? say --boxes class or --boxes agnostic"
        raise Error(f'{place}: layer "{name}" has 8 outputs: {question}')
    if width == 8 and plan.boxes != "class":
        plan.agnostic = True
    elif width == 4 * plan.old:
        return True
    else:
        plan.note(i, f"left alone: {width} outputs are neither {4 * plan.old} (boxes of {plan.old} classes) nor 8")
    return False


def _resize(plan: Plan, graph: Graph, heads: Sequence[int], values: int) -> None:
    """Heads of so many values a class, and the convolutions before position-sensitive layers."""
    old, new = values * plan.old, values * plan.new
    makers: dict[int, list[int]] = {}
    for i in heads:
        plan.resize(i, old, new)
        if graph.kinds[i].position_sensitive and graph.makers[i]:
            makers.setdefault(group_cells(graph.layers[i]), []).append(graph.makers[i][0])
    for cells, starts in makers.items():
        before = graph.heads(starts)
        for maker in before.layers:
            plan.resize(maker, old * cells, new * cells)
        plan.reshapes(before.ways(before.layers), {old * cells: new * cells})
