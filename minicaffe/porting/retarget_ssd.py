"""SSD's class count: the conf layers (priors * classes outputs), their Reshape, and num_classes of the layers at the end."""

from __future__ import annotations

from minicaffe.errors import Error
from minicaffe.layers.annotated_data import AnnotatedData
from minicaffe.layers.detection_evaluate import DetectionEvaluate
from minicaffe.layers.detection_output import DetectionOutput
from minicaffe.layers.multi_box_loss import MultiBoxLoss

from .retarget_graph import Graph
from .retarget_plan import Plan

ENDS = (DetectionOutput, MultiBoxLoss, DetectionEvaluate)
"""What knows the number of classes beside the layers before it, in its own block."""


def plan_ssd(plan: Plan) -> None:
    """All changes of an SSD, in both phases."""
    for graph in plan.graphs():
        outputs: dict[int, list[int]] = {}
        for end in graph.of_class(*ENDS):
            _plan_end(plan, graph, end, outputs)
        for values, starts in outputs.items():
            _outputs(plan, graph, starts, values)
        for i in graph.of_class(AnnotatedData):
            if plan.old and (file := graph.layers[i].annotated_data_param.label_map_file):
                plan.note(i, f"its label_map_file {file} must list the new classes")


def _plan_end(plan: Plan, graph: Graph, end: int, outputs: dict[int, list[int]]) -> None:
    """Change the layer at the end. outputs: gets the layers that give it scores and boxes, by their values for each class."""
    layer, kind = graph.layers[end], graph.kinds[end]
    block = getattr(layer, kind.param_block[0])
    if not block.num_classes:
        return
    plan.found(block.num_classes, end)
    plan.change(end, f"{kind.param_block[0]}.num_classes", plan.old, plan.new)
    if kind is DetectionOutput and block.save_output_param.label_map_file:
        plan.note(end, f"its label_map_file {block.save_output_param.label_map_file} must list the new classes")
    if kind is DetectionEvaluate or len(graph.makers[end]) < 3:
        return
    outputs.setdefault(1, []).append(graph.makers[end][1])
    if not block.share_location:
        outputs.setdefault(4, []).append(graph.makers[end][0])


def _outputs(plan: Plan, graph: Graph, starts: list[int], values: int) -> None:
    """The layers that give so many values for each class and prior, before these. Raises Error for other numbers of outputs."""
    heads = graph.heads(starts)
    for i in heads.layers:
        layer = graph.layers[i]
        count, each = layer.convolution_param.num_output or layer.inner_product_param.num_output, values * plan.old
        if count % each:
            place = plan.net.sources[i].at()
            raise Error(f'{place}: layer "{layer.name}" has num_output {count}, no multiple of {each} for {plan.old} classes')
        plan.resize(i, count, count // each * values * plan.new)
    plan.reshapes(heads.ways(heads.layers), {plan.old: plan.new})
