"""The execution plan: which layers of a net run together as one step.

    conv -> BatchNorm -> Scale -> ReLU, all on one blob:    conv, whose blocks are scaled, shifted and cut off in cache
    BatchNorm -> Scale -> ReLU on one blob; Eltwise -> ReLU: one pass over the blob

One by one, each layer would read the whole blob from memory and write it back, and Scale would keep a copy of its input for
a backward that may never run. The blobs' contents are the same within rounding. The backward of all but a chain's first layer
is one pass over the diff, if none of them learns: frozen BatchNorm and Scale layers, as detectors are trained with.

On the GPU a chain is the convolution and one launch after it, for the bias too; ReLU is part of Eltwise's launch. The results
have the same bits as layer by layer, and backward runs layer by layer.

A net asks its plan for the steps of every pass. Layers run one by one under hooks (the tracer, the timer, debug_info), where
start or end cut a chain, if a class is not built in, where BatchNorm takes the batch's own statistics, and where backward will
need a value from inside the chain; on the GPU also those in another order than BatchNorm, Scale, Bias, ReLU, and layers that
run on the CPU.

In TEST on the CPU a chain's step is kept. The next forward runs it again, unless a shape, a weight or a setting has changed, or
there is a view of the weights. To reshape four layers and to read their weights takes as long as a small convolution. With
compiled loops, kept steps are jobs, and consecutive ones run as one list of jobs in machine code. Python between two layers
would be slow, because the layers push its code out of the cache.

A Program runs several layers at once. There are two: lists of jobs on the CPU (compiled/program.py), CUDA graphs on the GPU
(cuda/replay.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.cuda.launches import data_pair

from .blob import Blob, Unchanged, bump_version, current_version
from .blob_memory import BlobMemory
from .kernels import KeptStep, compiled, makes_steps, may_have_steps, program_of, sharing_step, step_of
from .layer import Layer
from .layer_list import Node
from .layers.conv.convolution_products import wanted_way
from .layers.elementwise.channels import by_channel
from .layers.elementwise.epilogue import Epilogue, epilogue_step, joined
from .layers.elementwise.fusion import Channelwise, Fusing, device_epilogue_of, may_be_epilogue, takes_epilogue
from .mode import TEST, gpu_mode
from .threads import each_block, get_num_threads

OURS = "minicaffe.layers."
"""The package of the built-in layers."""

Step = Callable[[], None]


@dataclass
class FusedGroup:
    """Consecutive layers, each but the first in place on the first one's top; or a single layer whose step can be kept.

    index: the first layer's. alone: there is a single layer, which runs here only if its step is made of jobs. rejected_shapes:
    its bottoms' shapes, for which the step was not.

    together: whether they last ran as one step. step: the kept step, valid while made is current.
    """

    index: int
    nodes: list[Node]
    alone: bool = False
    rejected_shapes: tuple[tuple[int, ...], ...] | None = None
    together: bool = False
    step: Step | None = None
    made: Fingerprint | None = None

    def __post_init__(self) -> None:
        self.keeping = [node for node in self.nodes[1:] if node.layer.keeps_input]

    def forward(self, may: bool = True) -> bool:
        """Run the chain as one step if possible. Return False, with nothing computed, if it has to run layer by layer."""
        self.together = False
        single = gpu_mode() and len(self.nodes) == 1
        if not may or self.backward_lacks() or single or (self.alone and not self._may_keep()):
            self.invalidate()  # the layers will be reshaped one by one
            return False
        self.nodes[0].layer.guard(self._run)  # errors name the first layer unless another layer has named itself
        return self.together

    def _run(self) -> None:
        with np.errstate(all="ignore"):  # as in Layer.forward; making a step from weights may overflow too
            if step := self._ready_step():
                step()
                self.together = True

    def may_run_kept(self) -> bool:
        """Return whether a program may run the kept step: nothing has changed, and the chain may run as one."""
        is_job = isinstance(self.step, KeptStep) and not gpu_mode()
        return is_job and self.made is not None and self.made.is_current() and not self.backward_lacks()

    def backward(self) -> bool:
        """Run the backward of all layers but the first as one step, in the diff that they share.

        Return False, with nothing computed, if they have to run one by one.
        """
        first, *rest = self.nodes
        if not self.together or not all(
            node.needs_backward and all(node.bottom_needs) and not any(node.layer.param_propagate_down) for node in rest
        ):
            return False
        with np.errstate(all="ignore"):  # as Layer.backward
            factors = [found for node in rest if (found := _channelwise(node).gradient()) is not None]
            if len(factors) < len(rest):
                return False
            gradient = joined(factors, first.layer.dtype)
            rest[-1].layer.guard(lambda: _run_back(first.tops[0], gradient))
        return True

    def before_backward(self) -> None:
        """Run the layers one by one, if they ran as one step without keeping what backward now needs."""
        if self.together and self.backward_lacks():
            self.together = False
            for node in self.nodes:
                node.layer.forward_pass(node.bottoms, node.tops)  # the first layer overwrites the shared top

    def backward_lacks(self) -> bool:
        """Return whether backward needs a value inside the chain: Scale's gradient is the product of dy and its input."""
        return any(node.needs_backward and node.layer.param_propagate_down[0] for node in self.keeping)

    def invalidate(self) -> None:
        """Drop the step, so that the next forward makes a new one."""
        if self.made is not None:
            self.step = self.made = None
            bump_version()

    def _ready_step(self) -> Step | None:
        """Return the kept step if it is current, else a new one, which is kept in TEST on the CPU."""
        if self.made is not None and self.made.is_current():
            return self.step
        self.invalidate()
        for node in self.nodes:
            node.layer.reshape_pass(node.bottoms, node.tops)
        made = Fingerprint.of_step(self.nodes, self.alone) if self._may_keep() else None  # before the step reads the weights
        step = self._step()
        if made is not None and step is not None and made.is_current():
            self.step, self.made = step, made
            bump_version()
        return step

    def _may_keep(self) -> bool:
        keeps = self.nodes[0].layer.phase == TEST and not gpu_mode()
        return keeps and (
            not self.alone or (compiled() and self.rejected_shapes != self._shapes() and _makes_step(self.nodes[0].layer))
        )

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(blob.shape for blob in self.nodes[0].bottoms)

    def _step(self) -> Step | None:
        """Return a step that runs the reshaped layers together; None where they have to run one by one."""
        first = self.nodes[0]
        if self.alone:
            step = _step_alone(first)
            self.rejected_shapes = self._shapes() if step is None else None  # avoids reshaping the layer twice in each forward
            return step
        # the first layer is then a convolution or the like
        after = self.nodes[1:] if takes_epilogue(first.layer) else self.nodes
        if gpu_mode():
            on_device = device_epilogue_of(first.layer, [node.layer for node in after], first.tops[0].shape)
            return None if on_device is None else partial(_run_gpu, first, on_device)
        found = [_channelwise(node).epilogue(node.bottoms[0].shape) for node in after]
        epilogues = [one for one in found if one is not None]
        return _step_of(first, joined(epilogues, first.layer.dtype)) if len(epilogues) == len(found) else None


@dataclass
class Fingerprint:
    """The ingredients of a step or a graph, to detect changes.

    They are each layer with the number of its changes and its blobs, the numbers and shapes of blobs, and the parameters of
    layers that read them in a forward, which change without notice.

    looked: current_version when all but the parameters were last found unchanged.
    """

    layers: Sequence[tuple[Layer, int, list[Blob]]]
    parameters: Sequence[tuple[Callable[[], object], object]]
    blobs: Unchanged
    looked: object = None

    @classmethod
    def of(cls, nodes: Sequence[Node], parameters: bool, blobs: Unchanged | None = None) -> Fingerprint:
        """Return the fingerprint of layers in their present state. parameters: whether their parameters count."""
        for node in nodes:
            node.layer.watched = True
        layers = [(node.layer, node.layer.changes, list(node.layer.blobs)) for node in nodes]
        reads = [node.layer.param.SerializePartialToString for node in nodes] if parameters else []
        return cls(layers, [(read, read()) for read in reads], blobs or Unchanged(()))

    @classmethod
    def of_step(cls, nodes: Sequence[Node], alone: bool) -> Fingerprint:
        """Return the fingerprint of a chain's step. Only a layer alone reads its parameters in reshape and forward."""
        weights, first = (blob for node in nodes for blob in node.layer.blobs), nodes[0]
        return cls.of(nodes, alone, Unchanged(weights, (*first.bottoms, *first.tops)))

    @classmethod
    def joined(cls, several: Sequence[Fingerprint]) -> Fingerprint:
        """Return the fingerprint of all ingredients of these."""
        layers = [layer for one in several for layer in one.layers]
        parameters = [parameter for one in several for parameter in one.parameters]
        return cls(layers, parameters, Unchanged.joined([one.blobs for one in several]))

    def is_current(self) -> bool:
        """Return True if nothing has changed."""
        latest = current_version()
        if self.looked is not latest:
            if any(layer.changes != changes or layer.blobs != blobs for layer, changes, blobs in self.layers):
                return False
            if not self.blobs.holds():
                return False
            self.looked = latest
        return all(read() == parameter for read, parameter in self.parameters)


class Program(Protocol):
    """A runner of several layers of a plan at once."""

    def begin(self, first: int, last: int) -> None:
        """Prepare for a forward of these layers."""

    def run(self, first: int, last: int) -> int:
        """Run the layers from first to last, as far as the program can; return the next layer."""

    def end(self, last: int) -> None:
        """End a forward after this layer, its last one."""


class ExecutionPlan:
    """The chains of a net's nodes.

    memory: frees inner blobs during a forward, or None. at: the layer, or the first layer of the chain, that a forward is at.
    program: runs several layers at once, or None. _environment: the conditions of how layers run; the chains' steps and the
    program are dropped when it changes.
    """

    def __init__(self, nodes: Sequence[Node], memory: BlobMemory | None = None) -> None:
        self.nodes, self.memory = nodes, memory
        self.chains = {chain.index: chain for chain in _chains(nodes)}
        self.at = 0
        self.program: Program | None = None
        self._environment: tuple[object, ...] | None = None
        long = [chain for chain in self.chains.values() if len(chain.nodes) > 1]
        self._by_end = {chain.index + len(chain.nodes) - 1: chain for chain in long}

    def begin(self, first: int, last: int, one_by_one: bool = False) -> int:
        """Begin a forward of the layers from first to last, and run what the program can, unless one_by_one.

        Return the next layer. Jobs need nothing that NumPy and BLAS do (threads.computing).
        """
        environment = ("GPU",) if gpu_mode() else (compiled(), get_num_threads(), wanted_way()) if self.chains else ()
        if environment != self._environment:
            self._environment = environment
            for chain in self.chains.values():
                chain.invalidate()
            self.program = program_of(self) if environment else None
        if self.memory:
            self.memory.stay = ()
        self.at = first
        if one_by_one or self.program is None:
            return first
        self.program.begin(first, last)
        end = self.program.run(first, last)
        if end > last:
            self.program.end(last)
        return end

    def steps(self, first: int, last: int, one_by_one: bool = False) -> Iterator[int]:
        """Yield the layers from first to last that the caller has to run, in order, after begin.

        Chains run here, unless one_by_one.
        """
        i = first
        while i <= last:
            self.at = i
            if not one_by_one and self.program and (end := self.program.run(i, last)) > i:
                i = end
                continue
            chain = self.chains.get(i)  # none inside a chain that starts before `first`
            if self.memory:
                self.memory.before(i)
            # Call forward even if the chain may not run: it records that for before_backward.
            if chain is not None and chain.forward(i + len(chain.nodes) - 1 <= last and not one_by_one):
                count = len(chain.nodes)
            else:
                count = 1
                yield i
            if self.memory:
                for j in range(i, i + count):
                    self.memory.after(j)
            i += count
        if self.program:
            self.program.end(last)

    def run(self, first: int, last: int) -> None:
        """Run these layers for a program, without calling it."""
        program, self.program = self.program, None
        try:
            for i in self.steps(first, last):
                node = self.nodes[i]
                node.layer.reshape_and_forward(node.bottoms, node.tops)
        finally:
            self.program = program

    def backward_steps(self, first: int, last: int, one_by_one: bool = False) -> Iterator[int]:
        """Yield the layers from `first` down to `last` whose backward the caller has to run, in order.

        The backward of chains runs here, except for their first layer, unless one_by_one.
        """
        for one in self.chains.values():
            one.before_backward()
        i = first
        while i >= last:
            chain = self._by_end.get(i)  # none inside a chain that ends after `first`
            if chain is not None and not one_by_one and chain.index + 1 >= last and chain.backward():
                i = chain.index
            else:
                yield i
                i -= 1


def _chains(nodes: Sequence[Node]) -> Iterator[FusedGroup]:
    i = 0
    while i < len(nodes):
        end = i + 1
        if _begins(nodes[i]):
            while end < len(nodes) and not _is_rectifier(nodes[end - 1].layer) and _follows(nodes[end], nodes[i]):
                end += 1
        alone = end == i + 1 and not takes_epilogue(nodes[i].layer) and _keeps_step(nodes[i])
        chain = FusedGroup(i, list(nodes[i:end]), alone)
        if (len(chain.nodes) > 1 or takes_epilogue(nodes[i].layer) or alone) and not _overwrites(chain):
            yield chain
        i = end


def _begins(node: Node) -> bool:
    layer = node.layer
    if len(node.tops) != 1 or any(layer.loss_weights):  # a chain skips forward_pass, which adds up the loss
        return False
    return takes_epilogue(layer) or may_be_epilogue(layer)


def _keeps_step(node: Node) -> bool:
    """Return whether a built-in layer has a step or makes one pass over a blob. A derived class may compute anything."""
    layer = node.layer
    has = layer.only_shares or may_have_steps(layer)
    alone = may_be_epilogue(layer) and layer.is_exact_alone
    return (alone or (type(layer).__module__.startswith(OURS) and has)) and not any(layer.loss_weights)


def _makes_step(layer: Layer) -> bool:
    """Return whether the layer has such a step once loops are compiled."""
    return layer.only_shares or may_be_epilogue(layer) or makes_steps(layer)


def _is_rectifier(layer: Layer) -> bool:
    return isinstance(layer, Channelwise) and layer.is_rectifier


def _channelwise(node: Node) -> Channelwise:
    """Return the layer, which may be an Epilogue."""
    assert isinstance(node.layer, Channelwise)
    return node.layer


def _follows(node: Node, first: Node) -> bool:
    layer = node.layer
    if not may_be_epilogue(layer) or any(layer.loss_weights) or not node.bottoms[0] is node.tops[0] is first.tops[0]:
        return False
    return not isinstance(first.layer, Fusing) or first.layer.may_apply(_channelwise(node))


def _overwrites(chain: FusedGroup) -> bool:
    """Return whether the chain cannot be run again for before_backward, because it overwrites its input."""
    first = chain.nodes[0]
    return first.tops[0] in first.bottoms and any(node.layer.keeps_input for node in chain.nodes)


def _step_of(first: Node, epilogue: Epilogue) -> Step:
    layer, bottoms, tops = first.layer, first.bottoms, first.tops
    if not takes_epilogue(layer):
        return epilogue_step(bottoms[0], tops[0], epilogue)
    return step_of(layer, bottoms, tops, epilogue) or layer.ready(bottoms, tops, epilogue)


def _step_alone(node: Node) -> KeptStep | None:
    """Return the layer's step if it is made of jobs, else None."""
    layer, bottoms, tops = node.layer, node.bottoms, node.tops
    if layer.only_shares:
        return sharing_step(layer, bottoms, tops)
    if not may_be_epilogue(layer) or not layer.is_exact_alone:
        made = step_of(layer, bottoms, tops)
        return made if isinstance(made, KeptStep) else None
    epilogue = layer.epilogue(bottoms[0].shape)
    step = None if epilogue is None else epilogue_step(bottoms[0], tops[0], joined([epilogue], layer.dtype))
    return step if isinstance(step, KeptStep) else None


def _run_gpu(first: Node, epilogue: DeviceEpilogue) -> None:
    layer, bottoms, tops = first.layer, first.bottoms, first.tops
    if takes_epilogue(layer):
        layer.forward_gpu_with_epilogue(bottoms, tops, epilogue)
        return
    x, y = data_pair(bottoms[0], tops[0])
    epilogue(layer.dtype, tops[0].shape, x, y)


def _run_back(top: Blob, gradient: Epilogue) -> None:
    """Multiply the top's diff by the gradient of an in-place Epilogue, given its result, the top's data."""
    y, diff = by_channel(top.read_data()), by_channel(top.diff)
    each_block(y.shape, lambda index: gradient.backward(y[index], diff[index], index[1]))
