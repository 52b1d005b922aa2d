"""The heads of R-CNNs and R-FCNs: found by what reads what, not by layer names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .errors import Error
from .output_counts import group_cells, outputs_of
from .retarget_graph import Graph
from .retarget_plan import SOFTMAX, Plan


def plan_heads(plan: Plan) -> None:
    """The classes' and boxes' layers behind ROI layers, in both phases."""
    graphs = plan.graphs()
    for graph in graphs:
        for i, path in _heads(graph, graph.of_class(*SOFTMAX)):
            plan.found(outputs_of(graph.layers[i]), i)
            _resize(plan, graph, i, 1)
            plan.reshapes(path, {plan.old: plan.new})
    scores = {change.layer for change in plan.changes}
    for graph in graphs:
        for i, path in _heads(graph, graph.ends):
            if i in scores:
                plan.reshapes(path, {plan.old: plan.new})
            elif plan.old and _for_each_class(plan, graph, i):
                _resize(plan, graph, i, 4)
                plan.reshapes(path, {4 * plan.old: 4 * plan.new, plan.old: plan.new})


def _heads(graph: Graph, starts: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The heads before these layers that lie behind a ROI layer or are one."""
    rois = [i for i, kind in graph.kinds.items() if kind.is_roi_layer]
    behind = graph.behind(rois) | set(rois)
    for start in sorted(starts):
        if start in behind:
            yield from ((i, path) for i, path in graph.heads(start) if i in behind)


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


def _resize(plan: Plan, graph: Graph, i: int, values: int) -> None:
    """A head of so many values a class, and the convolution before a position-sensitive layer."""
    old, new = values * plan.old, values * plan.new
    plan.resize(i, old, new)
    layer = graph.layers[i]
    if not graph.kinds[i].position_sensitive or not graph.makers[i]:
        return
    cells = group_cells(layer)
    for maker, path in graph.heads(graph.makers[i][0]):
        plan.resize(maker, old * cells, new * cells)
        plan.reshapes(path, {old * cells: new * cells})
