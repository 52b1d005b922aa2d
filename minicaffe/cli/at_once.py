"""How many images or batches a command computes at once, each in a process of its own (scaling/in_flight.py): as many as
there are threads, if the net is small and a forward depends on nothing but its inputs; else one, on all threads."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe import threads
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layer_list import Node
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST, gpu_mode
from minicaffe.net import Net
from minicaffe.scaling.batch.recipe import Pipeline
from minicaffe.scaling.in_flight import CAN_FORK
from minicaffe.tracing.summary import summarize

MOST_BYTES = 128 << 20
"""What a small net needs at most beside its weights, which the processes share. The layers of larger ones (at 600 x 1000, ZF
needs 187 MiB and VGG16 629) keep all threads busy by themselves."""


def images_at_once(pipeline: Pipeline, images: int) -> int:
    """For a number of images. If several, the net's loops are compiled before it returns."""
    if not _may_be_several(pipeline.net.nodes, images):
        return 1
    pipeline.detector.family.reshape_to_largest(pipeline.net)
    return _several_if_small(pipeline.net, images)


def batches_at_once(net: Net, batches: int) -> tuple[int, int]:
    """For a number of batches that the net reads by itself; and how many layers, from the first, one process has to run for
    all of them in turn, as they read the data: 0 if there is one process."""
    first = max((i + 1 for i, node in enumerate(net.nodes) if not node.bottoms), default=0)
    head = all(not node.bottoms or isinstance(node.layer, Split) for node in net.nodes[:first])
    if not head or not _may_be_several(net.nodes[first:], batches):
        return 1, 0
    count = _several_if_small(net, batches)
    return count, first if count > 1 else 0


def _may_be_several(nodes: Sequence[Node], items: int) -> bool:
    free = items > 1 and threads.get_num_threads() > 1 and CAN_FORK and not gpu_mode()
    return free and bool(nodes) and all(_is_independent(node.layer) for node in nodes)


def _several_if_small(net: Net, items: int) -> int:
    """The threads, or 1, by the memory that the net needs at its inputs' present shapes."""
    try:
        needs = summarize(net).memory
    except Error:  # for example, the largest image exceeds a limit
        return 1
    peak = needs.peak if needs.peak_of_outputs is None or not net.plan.memory else needs.peak_of_outputs
    if peak - needs.weights > MOST_BYTES:
        return 1
    net.compile_loops()  # once for all processes
    return min(threads.get_num_threads(), items)


def _is_independent(layer: Layer) -> bool:
    """Whether a forward depends on no other and acts on nothing but its tops. Of a user's class, nobody knows."""
    return type(layer).__module__.startswith("minicaffe.layers.") and layer.phase == TEST and not layer.stateful
