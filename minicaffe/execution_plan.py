"""The execution plan: which layers of a net run together as one step.

    conv -> BatchNorm -> Scale -> ReLU, all on one blob:    conv, whose blocks are scaled, shifted and cut off in cache
    BatchNorm -> Scale -> ReLU on one blob; Eltwise -> ReLU: one pass over the blob

One by one, each layer would read the whole blob from memory and write it back, and Scale would keep a copy of its input for
a backward that may never run. The blobs' contents are the same within rounding. The backward of all but a chain's first layer
is one pass over the diff, if none of them learns: frozen BatchNorm and Scale layers, as detectors are trained with.

On the GPU a chain is the convolution and one launch behind it, for the bias too; ReLU is part of Eltwise's launch. The results
have the same bits as layer by layer, and backward runs layer by layer.

A net asks its plan for the steps of every pass. Layers run one by one under hooks (the tracer, the timer, debug_info), where
start or end cut a chain, if a class is not built in, where BatchNorm takes the batch's own statistics, and where backward will
need a value from inside the chain; on the GPU also those in another order than BatchNorm, Scale, Bias, ReLU, and layers that
run on the CPU.

In TEST on the CPU a chain's step is kept: the next forward runs it again, unless a shape, a weight or a setting has changed,
or somebody holds a view of the weights. To reshape four layers and to read their weights takes as long as a small convolution.
With compiled loops kept steps are jobs, and those that follow one another are run as one list of jobs, in machine code from the
first to the last: Python between two layers, whose code has left the cache meanwhile, takes 40 to 140 us.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from . import loops
from .blob import Blob, Places, SyncedMemory, Unchanged, latest_change, note_change
from .blob_memory import BlobMemory, Loan
from .blocks import Job, JobList, KeptStep, each_block
from .cuda.pairs import data_pair
from .cuda.replay import Graphs
from .kernels import may_have_steps, step_of
from .layer import Layer
from .layers.conv.convolution_products import wanted_way
from .layers.conv.epilogue_gpu import DeviceEpilogue
from .layers.conv.epilogue_of import (
    device_epilogue_of,
    epilogue_of,
    gradient_of,
    is_last,
    may_be_alone,
    may_be_epilogue,
    may_follow,
    takes_epilogue,
)
from .layers.elementwise.channels import by_channel
from .layers.elementwise.epilogue import Epilogue, epilogue_step, joined
from .mode import TEST, gpu_mode
from .node import Node
from .threads import get_num_threads

SECONDS = 0.1
"""About how long jobs run before Ctrl-C is heeded."""

OURS = "minicaffe.layers."
"""Where the built-in layers are."""

Step = Callable[[], None]


@dataclass
class Chain:
    """Consecutive layers, each but the first in place on the first one's top, or one alone whose step can be kept. index: the
    first one's. alone: there is one, which is run here only if its step is made of jobs; hopeless: its bottoms' shapes, where
    it turned out not to be.

    together: whether they last ran as one step. ready: the step, if it is kept.
    """

    index: int
    nodes: list[Node]
    alone: bool = False
    hopeless: tuple[tuple[int, ...], ...] | None = None
    together: bool = False
    ready: _Kept | None = None

    def __post_init__(self) -> None:
        self.keeping = [node for node in self.nodes[1:] if node.layer.keeps_input]

    def forward(self, may: bool = True) -> bool:
        """Run the chain as one step, if it may; False, with nothing computed, if it has to run layer by layer."""
        self.together = False
        single = gpu_mode() and len(self.nodes) == 1
        if not may or self.backward_lacks() or single or (self.alone and not self._may_keep()):
            self.forget()  # the layers are about to be reshaped one by one
            return False
        self.nodes[0].layer.guard(self._run)  # errors name the first layer, unless another has named itself
        return self.together

    def _run(self) -> None:
        with np.errstate(all="ignore"):  # as Layer.forward; a step is made of weights, which may overflow too
            if step := self._ready_step():
                step()
                self.together = True

    def kept(self) -> _Kept | None:
        """The step, if it is kept and made of jobs."""
        return self.ready if self.ready is not None and isinstance(self.ready.step, KeptStep) else None

    def may_run_kept(self) -> bool:
        """Whether nothing has changed that the kept step was made of, and the chain may run as one."""
        kept = None if gpu_mode() else self.kept()
        return kept is not None and not self.backward_lacks() and kept.made.is_same()

    def has_weights_in(self, memories: Container[SyncedMemory]) -> bool:
        """Whether a blob of its layers shares one of these memories: what is written there has to be read first."""
        return any(blob.data_memory in memories for node in self.nodes for blob in node.layer.blobs)

    def backward(self) -> bool:
        """Run the backward of all layers but the first as one step, in the diff that they share; False, with nothing computed,
        if they have to run one by one."""
        first, *rest = self.nodes
        if not self.together or not all(
            node.needs_backward and all(node.bottom_needs) and not any(node.layer.param_propagate_down) for node in rest
        ):
            return False
        with np.errstate(all="ignore"):  # as Layer.backward
            gradient = joined([gradient_of(node.layer) for node in rest], first.layer.dtype)
            rest[-1].layer.guard(lambda: _run_back(first.tops[0], gradient))
        return True

    def before_backward(self) -> None:
        """Run the layers one by one, if they ran as one step without keeping what backward now needs."""
        if self.together and self.backward_lacks():
            self.together = False
            for node in self.nodes:
                node.layer.forward_pass(node.bottoms, node.tops)  # the first one makes the shared top anew

    def backward_lacks(self) -> bool:
        """Whether backward needs a value inside the chain: Scale's gradient is the product of dy and its input."""
        return any(node.needs_backward and node.layer.param_propagate_down[0] for node in self.keeping)

    def forget(self) -> None:
        """Make the step anew at the next forward."""
        if self.ready is not None:
            self.ready = None
            note_change()

    def _ready_step(self) -> Step | None:
        """The last step again, if nothing has changed that it was made of, in TEST on the CPU; else what _step makes."""
        if self.ready is not None and self.ready.made.is_same():
            return self.ready.step
        self.forget()
        for node in self.nodes:
            node.layer.reshape_pass(node.bottoms, node.tops)
        made = _Made.of(self.nodes, self.alone) if self._may_keep() else None  # before the weights are read
        step = self._step()
        if made is not None and step is not None and made.is_same():
            self.ready = _Kept(made, step)
            note_change()
        return step

    def _may_keep(self) -> bool:
        keeps = self.nodes[0].layer.phase == TEST and not gpu_mode()
        return keeps and (not self.alone or (loops.compiled() and self.hopeless != self._shapes()))

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(blob.shape for blob in self.nodes[0].bottoms)

    def _step(self) -> Step | None:
        """What runs the layers together, reshaped; None where they have to run one by one."""
        first = self.nodes[0]
        if self.alone:
            step = _step_alone(first)
            self.hopeless = self._shapes() if step is None else None  # so that the layer is not reshaped twice each time
            return step
        after = self.nodes[1:] if takes_epilogue(first.layer) else self.nodes  # the first layer: a convolution or the like
        if gpu_mode():
            on_device = device_epilogue_of(first.layer, [node.layer for node in after], first.tops[0].shape)
            return None if on_device is None else partial(_run_gpu, first, on_device)
        found = [epilogue_of(node.layer, node.bottoms) for node in after]
        epilogues = [one for one in found if one is not None]
        return _step_of(first, joined(epilogues, first.layer.dtype)) if len(epilogues) == len(found) else None


@dataclass
class _Made:
    """What a step is made of: the shapes of bottoms and tops, the layers' blobs and what they hold, the layers' attributes, and
    the parameters of a layer alone, which its reshape reads.

    changes: how many of its attributes were set by then. parameters: what reads each, and what it was. looked: the latest
    change when all but the parameters were the same.
    """

    shapes_and_weights: Unchanged
    blobs: list[tuple[Layer, list[Blob]]]
    changes: Sequence[tuple[Layer, int]]
    parameters: Sequence[tuple[Callable[[], object], object]]
    looked: object = None

    @classmethod
    def of(cls, nodes: Sequence[Node], alone: bool) -> _Made:
        blobs = [(node.layer, list(node.layer.blobs)) for node in nodes if node.layer.blobs]
        changes, parameters = [], []
        for node in nodes:
            node.layer.watched = True
            changes.append((node.layer, node.layer.changes))
        if alone:
            write = nodes[0].layer.param.SerializePartialToString
            parameters.append((write, write()))
        unchanged = Unchanged((blob for _, some in blobs for blob in some), (*nodes[0].bottoms, *nodes[0].tops))
        return cls(unchanged, blobs, changes, parameters)

    @classmethod
    def joined(cls, several: Sequence[_Made]) -> _Made:
        """What all these are made of."""
        return cls(
            Unchanged.joined([one.shapes_and_weights for one in several]),
            [some for one in several for some in one.blobs],
            [some for one in several for some in one.changes],
            [some for one in several for some in one.parameters],
        )

    def is_same(self) -> bool:
        """Whether nothing has changed, for sure."""
        latest = latest_change()
        if self.looked is not latest:
            if any(layer.blobs != blobs for layer, blobs in self.blobs) or not self.shapes_and_weights.holds():
                return False
            if any(layer.changes != changes for layer, changes in self.changes):
                return False
            self.looked = latest
        return all(read() == parameter for read, parameter in self.parameters)


class _Kept(NamedTuple):
    """A step, and what it was made of."""

    made: _Made
    step: Step


class _KeptRun:
    """Kept steps of chains that follow one another, which run as one list of jobs. behind: the chain that would be the next.
    memory: what frees inner blobs, or None."""

    def __init__(self, chains: Sequence[Chain], behind: Chain | None, memory: BlobMemory | None) -> None:
        self.end = chains[-1].index + len(chains[-1].nodes)
        """The layer behind."""
        self._kept = [(one, kept) for one in chains if (kept := one.kept())]
        self._made = _Made.joined([kept.made for _, kept in self._kept])
        self._steps = [(one, kept.step) for one, kept in self._kept if isinstance(kept.step, KeptStep)]
        of_jobs = [(one, step, job.job) for one, step in self._steps for job in step.jobs]
        self._owners = [(one.nodes[0].layer, step) for one, step, _ in of_jobs]
        """Whose each job is."""
        self._jobs = JobList([job for *_, job in of_jobs])
        self._before = [(one.nodes[0].layer, before) for one, step in self._steps if (before := step.before) is not None]
        placed = [job for _, step in self._steps for job in step.jobs]
        self._blobs, self._tops = [blob for job in placed for blob in job.blobs], [job.top for job in placed]
        self._places: Places | None = None
        self._watched: list[SyncedMemory] = []
        """The tops' memory of which somebody has to know that it is written to."""
        self._latest_move: object = None
        self._first, self._memory = chains[0].index, memory
        self._loan: Loan | None = None
        made = {top for one in chains for top in one.nodes[0].tops}
        self._given = [blob for one in chains for blob in one.nodes[0].bottoms if blob not in made] if memory else []
        """What layers before the list have made, whose memory may be gone."""
        self._chains, self._behind = chains, behind
        self._keeping: list[Chain] = []
        """Those of which backward may lack something."""
        self._looked: object = None
        self._prepared: object = None
        """The latest change when nothing had changed, and when the steps' `before` ran."""

    def may_run(self) -> bool:
        """Whether nothing at all has changed, nor does one more chain belong here."""
        latest = latest_change()
        if self._looked is not latest:
            if any(one.ready is not kept for one, kept in self._kept) or (self._behind and self._behind.may_run_kept()):
                return False
            self._keeping = [one for one in self._chains if any(node.needs_backward for node in one.keeping)]
            self._looked = latest
        return self._made.is_same() and not any(one.backward_lacks() for one in self._keeping)

    def run(self, at_once: int) -> int:
        """Run the jobs, so many at once, between which Ctrl-C is heeded. Returns how many should be at once from now on."""
        latest = latest_change()
        if self._prepared is not latest or self._latest_move is not Job.latest_move:  # not in most forwards
            with self._opened():
                self._share()
                self._place()
            self._watched = [top.data_memory for top in self._tops if top.data_memory.watched]
            self._prepared = latest  # if that has changed something, it comes before the next run, too
        for blob in self._given:
            blob.data_address("read")  # raises Error where the memory is gone
        if self._memory is not None and self._loan is not None:
            self._memory.begins(self._loan)
        for memory in self._watched:
            memory.wrote()
        done = 0
        while done < len(self._owners):
            run, start = partial(self._jobs.run, done, done + at_once), time.perf_counter()
            behind = self._owners[self._jobs.largest][0].guard(run)  # of memory, it is the one that there is no room for
            fitting = (behind - done) * SECONDS / max(1e-9, time.perf_counter() - start)
            at_once, done = max(1, min(2 * at_once, int(fitting))), behind
            layer, step = self._owners[done - 1]
            if step.mends:
                with self._opened():
                    layer.guard(step.mend)
        if self._memory is not None and self._loan is not None:
            self._memory.has_run(self._loan)
        else:  # backward asks
            for one, _ in self._steps:
                one.together = True
        return at_once

    def _opened(self) -> AbstractContextManager[None]:
        """Where inner blobs' memory may be used; it is made anew if they have other memory by now."""
        if self._memory is None:
            return nullcontext()
        if self._loan is None or not self._loan.holds():
            self._loan = None  # before memory is taken again
            self._loan = self._memory.lend(self._first, self.end, self._share)
        return self._loan.opened()

    def _share(self) -> None:
        for layer, before in self._before:
            layer.guard(before)

    def _place(self) -> None:
        if self._places is None or self._latest_move is not Job.latest_move or not self._places.hold():
            self._places = None
            for one, step in self._steps:
                one.nodes[0].layer.guard(step.place)
            self._places, self._latest_move = Places(self._blobs), Job.latest_move


class ExecutionPlan:
    """The chains of a net's nodes. memory: what frees inner blobs during a forward, or None. at: the layer, or the first one of
    the chain, that a forward is at. graphs: the parts of a forward that a GPU runs as CUDA graphs."""

    def __init__(self, nodes: Sequence[Node], memory: BlobMemory | None = None) -> None:
        self.memory = memory
        self.chains = {chain.index: chain for chain in _chains(nodes)}
        self.at = 0
        self.graphs = Graphs(self, nodes)
        self._circumstances: tuple[object, ...] = ()
        self._asked_for: frozenset[str] = frozenset()
        long = [chain for chain in self.chains.values() if len(chain.nodes) > 1]
        self._by_end = {chain.index + len(chain.nodes) - 1: chain for chain in long}
        self._at_once = 1
        """How many jobs run before Ctrl-C is heeded."""
        self._kept: dict[tuple[int, int], _KeptRun] = {}
        """By the first layer and the last one that could follow."""

    def run_jobs(self, first: int, last: int, one_by_one: bool = False) -> int:
        """Run what is kept as jobs of the layers from first to last, as far as it goes, unless one_by_one; returns the layer
        behind. Jobs need nothing that NumPy and BLAS do (threads.computing)."""
        self._look_around()
        self.at = first
        behind = first if one_by_one else self._run_kept(first, last)
        if behind > last and self.memory:
            self.memory.end(last)
        return behind

    def steps(self, first: int, last: int, one_by_one: bool = False) -> Iterator[int]:
        """The layers from first to last that the caller has to run, in order, after run_jobs. Chains are run here, unless
        one_by_one."""
        i = first
        while i <= last:
            self.at = i
            if not one_by_one and (end := self._run_kept(i, last)) > i:
                i = end
                continue
            chain = self.chains.get(i)  # none for the rest of a chain that begins before `first`
            if self.memory:
                self.memory.before(i)
            # Asked even if the chain may not run: forward notes that, and before_backward relies on it.
            if chain is not None and chain.forward(i + len(chain.nodes) - 1 <= last and not one_by_one):
                count = len(chain.nodes)
            else:
                count = 1
                yield i
            if self.memory:
                for j in range(i, i + count):
                    self.memory.after(j)
            i += count
        if self.memory:
            self.memory.end(last)

    def _run_kept(self, first: int, last: int) -> int:
        """Run as jobs what is kept of the layers from `first` on, as far as it goes. Returns the layer behind."""
        run = self._kept.get((first, last))
        if run is not None and not run.may_run():
            run = None
            self._kept.clear()  # and with it what old steps hold, before new ones are made
        if run is None:
            found: list[Chain] = []
            written = set[SyncedMemory]()
            i = first
            while (chain := self._within(i, last)) and chain.may_run_kept() and not chain.has_weights_in(written):
                found.append(chain)
                written.update(top.data_memory for top in chain.nodes[0].tops)
                i += len(chain.nodes)
            if not found:
                return first
            run = self._kept[first, last] = _KeptRun(found, chain, self.memory)
        self._at_once = run.run(self._at_once)
        return run.end

    def _within(self, first: int, last: int) -> Chain | None:
        """The chain that begins there, if it ends by `last`."""
        chain = self.chains.get(first)
        return chain if chain is not None and first + len(chain.nodes) - 1 <= last else None

    def _look_around(self) -> None:
        """Drop the chains' steps where they may have to be others now."""
        now: tuple[object, ...] = ()
        if self.chains and not gpu_mode():
            now = loops.compiled(), get_num_threads(), wanted_way()
        asked_for = self.memory.asked_for_inner() if self.memory else frozenset()
        if asked_for != self._asked_for:
            self._asked_for = asked_for
            self._kept.clear()
        if now != self._circumstances:
            self._circumstances = now
            self._kept.clear()
            for chain in self.chains.values():
                chain.forget()

    def backward_steps(self, first: int, last: int, one_by_one: bool = False) -> Iterator[int]:
        """The layers from `first` down to `last` whose backward the caller has to run, in order. That of chains is run here,
        except for their first layer, unless one_by_one."""
        for one in self.chains.values():
            one.before_backward()
        i = first
        while i >= last:
            chain = self._by_end.get(i)  # none for the rest of a chain that ends behind `first`
            if chain is not None and not one_by_one and chain.index + 1 >= last and chain.backward():
                i = chain.index
            else:
                yield i
                i -= 1


def _chains(nodes: Sequence[Node]) -> Iterator[Chain]:
    i = 0
    while i < len(nodes):
        end = i + 1
        if _begins(nodes[i]):
            while end < len(nodes) and not is_last(nodes[end - 1].layer) and _follows(nodes[end], nodes[i]):
                end += 1
        alone = end == i + 1 and not takes_epilogue(nodes[i].layer) and _keeps_step(nodes[i])
        chain = Chain(i, list(nodes[i:end]), alone)
        if (len(chain.nodes) > 1 or takes_epilogue(nodes[i].layer) or alone) and not _overwrites(chain):
            yield chain
        i = end


def _begins(node: Node) -> bool:
    layer = node.layer
    if len(node.tops) != 1 or any(layer.loss_weights):  # a chain skips forward_pass, which adds up the loss
        return False
    return takes_epilogue(layer) or may_be_epilogue(layer)


def _keeps_step(node: Node) -> bool:
    """Whether it has a step, or is one pass over a blob: of our classes, since one derived from them may compute anything."""
    layer = node.layer
    has = layer.only_shares or may_have_steps(layer)
    return (may_be_alone(layer) or (type(layer).__module__.startswith(OURS) and has)) and not any(layer.loss_weights)


def _follows(node: Node, first: Node) -> bool:
    layer = node.layer
    if not may_be_epilogue(layer) or any(layer.loss_weights) or not node.bottoms[0] is node.tops[0] is first.tops[0]:
        return False
    return may_follow(layer, first.layer)


def _overwrites(chain: Chain) -> bool:
    """Whether the chain cannot be run again for before_backward, because it overwrites its input."""
    first = chain.nodes[0]
    return first.tops[0] in first.bottoms and any(node.layer.keeps_input for node in chain.nodes)


def _step_of(first: Node, epilogue: Epilogue) -> Step:
    layer, bottoms, tops = first.layer, first.bottoms, first.tops
    if not takes_epilogue(layer):
        return epilogue_step(bottoms[0], tops[0], epilogue)
    return step_of(layer, bottoms, tops, epilogue) or layer.ready(bottoms, tops, epilogue)


def _step_alone(node: Node) -> KeptStep | None:
    """Its step, if it is made of jobs."""
    layer, bottoms, tops = node.layer, node.bottoms, node.tops
    if layer.only_shares:
        return KeptStep([], before=lambda: layer.reshape(bottoms, tops))
    if not may_be_alone(layer):
        return step_of(layer, bottoms, tops)
    epilogue = epilogue_of(layer, bottoms)
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
    """The diff, times the gradient of an Epilogue in place whose result is the data."""
    y, diff = by_channel(top.read_data()), by_channel(top.diff)
    each_block(y.shape, lambda index: gradient.backward(y[index], diff[index], index[1]))
