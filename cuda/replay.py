"""The parts of a TEST net's forward that a GPU runs as CUDA graphs (graph.py), each with one driver call.

    data, losses, layers on the host, Proposal      run as always: they bring something to the host
    the layers between them                 a part each: captured once for a shape, then sent again without their Python

The first forward of a shape runs layer by layer, compiles the kernels, and finds the layers that wait for the device. The
second one captures the parts, and later ones replay them. A replay gives the same bits, blobs and states as layer by layer. It
needs that nothing changed but numbers: each blob that the part's launches read or write has the memory that it had, each layer
the attributes and learnable blobs. Otherwise the part is captured again. Numbers that changed on the host are copied to the
device first.

What a capture refuses, or the driver, runs layer by layer, as does everything under hooks and with start or end.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minicaffe.blob import Blob, MemoryState, SyncedMemory
from minicaffe.errors import DeviceError
from minicaffe.layer import Layer, are_attributes, attributes
from minicaffe.layer_list import Node
from minicaffe.mode import TEST
from minicaffe.plan import ExecutionPlan, Fingerprint, FusedGroup
from minicaffe.registry import is_built_in

from . import graph as cuda_graph
from .capture import Capture
from .device import stream_of_pass
from .graph import Graph

if TYPE_CHECKING:
    from .pool import DeviceMemory
    from .stream import Stream

MOST_SHAPES = 4
"""Most shapes of a part with a graph: each graph holds its memory."""

TRIES = 4
"""Captures that a part may have beyond MOST_SHAPES and its replays. After more, it is no longer captured."""

MOST_KNOWN = 1000
"""Most shapes that are remembered as seen."""

METHODS = frozenset(["forward", "forward_cpu", "forward_gpu", "reshape"])

Key = tuple[tuple[tuple[int, ...], ...], frozenset[str]]
"""The shapes of the blobs that a part reads, and the names of inner blobs that the caller of forward asked for."""


@dataclass
class Replay:
    """A captured part for one shape, and the conditions of its launches. Blocks are of device memory."""

    graph: Graph
    made: Fingerprint
    """The layers' fingerprint: their numbers are read again."""
    attributes: list[tuple[Layer, Mapping[str, object]]]
    """The layers' attributes, which forwards of other shapes change."""
    memories: list[tuple[Blob, SyncedMemory]]
    """The blobs that must still have the same memory."""
    read: list[tuple[SyncedMemory, DeviceMemory, int]]
    """The inputs from outside the part, with their numbers of elements."""
    tables: list[tuple[SyncedMemory, int]]
    """Tables that layers fill on the host, and how often each was copied to the device. Another shape may need other
    numbers."""
    written: list[tuple[SyncedMemory, DeviceMemory]]
    shapes: list[tuple[Blob, tuple[int, ...]]]
    """The shapes of the part's tops."""
    inner: list[tuple[Blob, SyncedMemory]]
    """With keep="outputs": blobs that are freed, here or later, and their memory after the part."""
    chains: list[tuple[FusedGroup, bool]]
    """Each chain, and whether it ran as one step."""

    def is_valid(self, part: Part, stream: Any) -> bool:
        """Return whether launching the graph equals running the part's layers now. Changes on the host are copied."""
        if not all(blob.data_memory is memory for blob, memory in self.memories):
            return False
        if not self.made.is_current() and not self._is_again(part):
            return False
        return (
            all(memory.uploads == uploads and memory.state is not MemoryState.HOST for memory, uploads in self.tables)
            and all(memory.block is block for memory, block in self.written)
            and all(memory.is_in(block, count, stream) for memory, block, count in self.read)
        )

    def _is_again(self, part: Part) -> bool:
        """Return whether the layers are the same after a reshape, if another shape ran since."""
        for node in part.nodes:
            node.layer.reshape_pass(node.bottoms, node.tops)
        made = Fingerprint.of(part.nodes, parameters=True)
        blobs = [[of for *_, of in one.layers] for one in (made, self.made)]
        if blobs[0] != blobs[1] or made.parameters != self.made.parameters:
            return False
        if not all(are_attributes(layer, kept) for layer, kept in self.attributes):
            return False
        self.made = made
        return True

    def run(self, stream: Any) -> None:
        """Launch the graph, and leave the blobs in the state that the part's layers leave."""
        for memory, _ in self.written:
            memory.wait_for_readers(stream)
        self.graph.launch()
        for memory, _ in self.written:
            memory.state = MemoryState.DEVICE
            memory.writes += 1
        for blob, shape in self.shapes:
            if blob.shape != shape:
                blob.reshape(shape)
        for blob, memory in self.inner:
            blob.data_memory = memory
        for chain, together in self.chains:
            chain.together = together


@dataclass
class Part:
    """Layers from first to last, none of which waits. given: the blobs that they read but do not make."""

    first: int
    last: int
    nodes: Sequence[Node]
    given: list[Blob]
    replays: OrderedDict[Key, Replay] = field(default_factory=OrderedDict)
    captured: int = 0
    replayed: int = 0

    def key(self, asked_for: Collection[str]) -> Key:
        """Return the current shapes, and the names asked for."""
        return tuple(blob.shape for blob in self.given), frozenset(asked_for)

    def launch(self, key: Key, replay: Replay, stream: Stream) -> int:
        """Launch a replay and keep it, and drop the one unused for longest. Return the last layer."""
        self.replays[key] = replay
        if len(self.replays) > MOST_SHAPES:
            self.replays.popitem(last=False)
        try:
            replay.run(stream.handle)
        except DeviceError as error:
            first, last = (node.layer.name for node in (self.nodes[0], self.nodes[-1]))
            raise DeviceError(f'layers "{first}" to "{last}", as a CUDA graph: {error}') from error
        return self.last

    @property
    def pays(self) -> bool:
        """Return whether the captures are replayed often enough."""
        return self.captured <= TRIES + MOST_SHAPES + self.replayed


class Graphs:
    """The graphs of a net's forward: a Program. plan: runs the layers, and knows the current one."""

    def __init__(self, plan: ExecutionPlan) -> None:
        # the plan owns this program; a cycle would keep the net's memory until garbage is collected
        self._plan = weakref.proxy(plan)
        self._nodes, self._memory, self._chains = plan.nodes, plan.memory, plan.chains
        may = all(node.layer.phase == TEST for node in plan.nodes)
        self._alone = {i for i, node in enumerate(plan.nodes) if not (may and _may_be_captured(node))}
        self._parts: dict[int, Part] = {}
        self._known: set[tuple[int, int, Key]] = set()
        self._stream: Stream | None = None
        """The stream of the present forward, if it may run as graphs."""
        self._last: Stream | None = None
        self._settings = 0
        self._divide()

    def drop(self) -> None:
        """Drop all graphs and the memory that they hold."""
        for part in list(self._parts.values()):
            part.replays.clear()

    def begin(self, first: int, last: int) -> None:
        stream = stream_of_pass()
        whole = (first, last) == (0, len(self._nodes) - 1)
        self._stream = stream if whole and cuda_graph.available() else None
        if stream is None or self._stream is None:
            return
        if stream is not self._last or self._settings != cuda_graph.settings():
            self.drop()
            self._known.clear()
            self._last, self._settings = stream, cuda_graph.settings()
            stream.device.graph_holders.add(self)
        self._let_alone({i for i, node in enumerate(self._nodes) if any(node.layer.loss_weights) or node.layer.phase != TEST})
        if self._memory:  # layers that run alone write for the parts, which read at fixed addresses
            self._memory.stay = self._stay

    def run(self, first: int, last: int) -> int:
        part = self._parts.get(first)
        return first if part is None or self._stream is None else self._run(part, self._stream) + 1

    def end(self, last: int) -> None:
        self._stream = None
        if self._memory:
            self._memory.stay = ()

    # Parts.

    def _divide(self) -> None:
        """Divide the layers anew into parts, between the layers that run alone."""
        for chain in self._chains.values():  # a chain may run as one step
            layers = range(chain.index, chain.index + len(chain.nodes))
            if not self._alone.isdisjoint(layers):
                self._alone.update(layers)
        old, self._parts, first = self._parts, {}, 0
        for i in range(len(self._nodes)):
            if i in self._alone:
                first = i + 1
            elif i + 1 in self._alone or i + 1 == len(self._nodes):
                known = old.get(first)
                self._parts[first] = known if known and known.last == i else self._part(first, i)
                first = i + 1
        self._stay = {name for i in self._alone for name in self._nodes[i].top_names}
        if self._memory and self._memory.stay:
            self._memory.stay = self._stay

    def _part(self, first: int, last: int) -> Part:
        nodes = self._nodes[first : last + 1]
        given, made = dict[Blob, None](), set[Blob]()
        for node in nodes:
            given.update(dict.fromkeys(blob for blob in node.bottoms if blob not in made))
            made.update(node.tops)
        return Part(first, last, nodes, list(given))

    def _asked_for(self) -> Collection[str]:
        return self._memory.asked_for if self._memory else ()

    def _run(self, part: Part, stream: Stream) -> int:
        """Run a part, or its first layers. Return the last layer that ran."""
        key = part.key(self._asked_for())
        replay = part.replays.pop(key, None)
        if replay is not None and replay.is_valid(part, stream.handle):
            part.replayed += 1
            return part.launch(key, replay, stream)
        if (part.first, part.last, key) in self._known and part.pays:
            return self._capture(part, key, stream)
        self._layer_by_layer(part, stream)
        return part.last

    def _layer_by_layer(self, part: Part, stream: Stream) -> None:
        """Run a part, and find its layers that wait for the device."""
        waited: set[int] = set()
        stream.on_wait = lambda: waited.add(self._plan.at)
        try:
            self._plan.run(part.first, part.last)
        finally:
            stream.on_wait = lambda: None
        self._let_alone(waited)
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        for one in self._parts.values():
            if part.first <= one.first and one.last <= part.last:
                self._known.add((one.first, one.last, one.key(self._asked_for())))

    def _let_alone(self, layers: Collection[int]) -> None:
        if not self._alone.issuperset(layers):
            self._alone.update(layers)
            self._divide()

    # Captures.

    def _capture(self, part: Part, key: Key, stream: Stream) -> int:
        """Capture a part and launch it, or run it up to the layer that no graph can hold. Return the last layer that ran."""
        part.captured += 1
        before = {blob: blob.data_memory for node in part.nodes for blob in (*node.bottoms, *node.tops)}
        capture: Capture | None = None
        try:
            _make_ready(part, before.values(), stream)
            with stream.device.capturing(stream) as capture:
                self._plan.run(part.first, part.last)
        except BaseException as error:
            if capture is not None:
                capture.undo()
            for blob, memory in before.items():
                blob.data_memory = memory
            if not isinstance(error, Exception):
                raise
            # Any error: if it is a layer's, running layer by layer raises it again.
            last = part.last
            if capture is not None and capture.refused:
                last = self._plan.at
                self._let_alone({last})
            self._plan.run(part.first, last)
            return last
        if capture.graph is None or not capture.graph.nodes:  # no layer has work
            self._let_alone(range(part.first, part.last + 1))
            return part.last
        return part.launch(key, self._replay(part, capture, capture.graph, before), stream)

    def _replay(self, part: Part, capture: Capture, graph: Graph, before: Mapping[Blob, SyncedMemory]) -> Replay:
        """Return the replay of a capture, with the memory that it relies on.

        before: the memory of the part's blobs before it.
        """
        memory_of = self._memory
        freed = {blob for name, blob in memory_of.blobs.items() if memory_of.is_inner(name)} if memory_of else set[Blob]()
        others = before.keys() - freed - set(part.given)
        same = [(blob, before[blob]) for blob in part.given] + [(blob, blob.data_memory) for blob in others]
        own = [(blob, blob.data_memory) for blob in capture.blobs.values() if blob not in before]
        weights = {blob for node in part.nodes for blob in node.layer.blobs}
        tables = {memory for blob, memory in own if blob not in weights}
        alive = [(memory, memory.block, use) for use in capture.uses.values() if (memory := use.memory()) is not None]
        return Replay(
            graph,
            Fingerprint.of(part.nodes, parameters=True),
            [(node.layer, attributes(node.layer)) for node in part.nodes],
            same + own,
            [(memory, block, use.count) for memory, block, use in alive if block is not None and use.read],
            [(memory, memory.uploads) for memory, _, use in alive if memory in tables and not use.written],
            [(memory, block) for memory, block, use in alive if block is not None and use.written],
            [(blob, blob.shape) for node in part.nodes for blob in node.tops],
            [(blob, blob.data_memory) for blob in before if blob in freed],
            [(chain, chain.together) for i, chain in self._chains.items() if part.first <= i <= part.last],
        )


def _make_ready(part: Part, memories: Iterable[SyncedMemory], stream: Stream) -> None:
    """Copy the part's inputs to the device, and let the stream wait for others. A capture can hold neither."""
    weights = [blob for node in part.nodes for blob in node.layer.blobs]
    for blob in [*part.given, *weights]:
        if blob.count:
            blob.device_data("read")
    for memory in memories:
        memory.wait_for_readers(stream.handle)


def _may_be_captured(node: Node) -> bool:
    """Return whether a GPU forward launches the same while the layer's attributes, shapes and memory stay the same.

    Others' classes may compute anything. The output of a layer without bottoms comes from the host, and a loss is read there.
    """
    layer = node.layer
    kind = type(layer)
    return (
        bool(node.bottoms)
        and not any(layer.loss_weights)
        and is_built_in(kind)
        and not layer.stateful
        and layer.has_gpu_forward
        and not METHODS.intersection(vars(layer))
    )
