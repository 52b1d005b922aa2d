"""The cost of a net: its layers, shapes, parameters and multiply-adds, the peak memory of a run, and the time of each layer.

The peak is computed from shapes alone:
    weights + data kept by layers + blobs + the largest working memory of a layer
With keep="outputs" a blob counts from the layer that makes it to its last reader; the peak is that of the worst layer.
In TRAIN: forward and backward, with the diffs of the weights and of the blobs that have a gradient. A solver's history is
not included: as much as the weights for SGD, twice as much for Adam. Nor are Python and its libraries, about 50 MiB.

Data kept for backward (BatchNorm's normalised batch, the input that Scale overwrites) counts in TEST too, except with
keep="outputs". Layers report it (Layer.costs); the default is a copy of the first bottom.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minicaffe.blob import Blob
from minicaffe.blob_memory import lifetimes
from minicaffe.cuda.device import current
from minicaffe.cuda.stream import Stopwatch
from minicaffe.forked import Forked
from minicaffe.formats.forks import Choice, candidates, grouped
from minicaffe.kernels import description, loops_of
from minicaffe.layer_list import Node
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TRAIN, gpu_mode
from minicaffe.net import Net

from .net_state import state_kept


@dataclass(frozen=True)
class MemoryNeeds:
    """The memory of a run, in bytes.

    kept: by layers between forwards (Winograd's factors, panels of weights), and from forward to backward. blobs: the data of
    all blobs. diffs: of weights and blobs, in TRAIN. working: the largest working memory of a layer. peak: the sum.
    peak_of_outputs: the peak with keep="outputs"; None in TRAIN.
    """

    weights: int
    kept: int
    blobs: int
    diffs: int
    working: int
    peak_of_outputs: int | None

    @property
    def peak(self) -> int:
        return self.weights + self.kept + self.blobs + self.diffs + self.working


def memory_needs(net: Net) -> MemoryNeeds:
    """Return the memory of a run at the current shapes of the net's blobs."""
    training = net.phase == TRAIN
    costs = [
        node.layer.costs(node.bottoms, node.tops, node.bottom_needs if training and node.needs_backward else None)
        for node in net.nodes
    ]
    cached, working = sum(each.cached for each in costs), [each.working for each in costs]
    chains = [chain for chain in net.plan.chains.values() if not chain.backward_lacks()]
    joined = {id(node) for chain in chains for node in chain.nodes[1:]}  # fused with the first node, they keep nothing
    for_backward = sum(each.saved for node, each in zip(net.nodes, costs, strict=True) if id(node) not in joined)
    weights = _bytes(net.learnable_params)
    return MemoryNeeds(
        weights=weights,
        kept=cached + for_backward,
        blobs=_bytes(top for node in net.nodes for top in node.tops),
        diffs=weights + _diff_bytes(net.nodes) if training else 0,
        working=max(working, default=0),
        peak_of_outputs=None if training else weights + cached + _most_alive(net, working),
    )


def _bytes(blobs: Iterable[Blob]) -> int:
    """Return the bytes of these blobs' data; shared memory counts once."""
    return sum({id(blob.data_memory): blob.count * blob.dtype.itemsize for blob in blobs}.values())


def _diff_bytes(nodes: Sequence[Node]) -> int:
    """Return the bytes of the diffs that backward reads and writes."""
    blobs: list[Blob] = []
    for node in nodes:
        if node.needs_backward:
            blobs += [*node.tops, *(blob for blob, needs in zip(node.bottoms, node.bottom_needs, strict=True) if needs)]
    return sum({id(blob): blob.count * blob.dtype.itemsize for blob in blobs}.values())


def _most_alive(net: Net, working: Sequence[int]) -> int:
    """Return the largest sum of the bytes of live blobs and a layer's working memory."""
    lives = lifetimes(net.nodes, [*net.inputs, *net.outputs])
    inner = {name for made in lives.made for name in made}
    alive: dict[str, Blob] = {}
    holders: Counter[int] = Counter()  # the number of live blobs in each memory
    taken = most = 0

    def end(name: str) -> int:
        """End a blob's life; return the bytes that become free."""
        blob = alive.pop(name)
        holders[id(blob.data_memory)] -= 1
        return 0 if holders[id(blob.data_memory)] else _bytes([blob])

    def begin(name: str, blob: Blob) -> int:
        """Begin a blob's life; return the bytes that it takes, less those of the blob that had its name before."""
        before = end(name) if name in alive else 0
        alive[name] = blob
        holders[id(blob.data_memory)] += 1
        return (_bytes([blob]) if holders[id(blob.data_memory)] == 1 else 0) - before

    # Inputs and outputs live for the whole run.
    taken += sum(begin(name, blob) for name, blob in net.blobs.items() if name not in inner)
    for made, ends, works in zip(lives.made, lives.ends, working, strict=True):
        taken += sum(begin(name, blob) for name, blob in made.items())
        most = max(most, taken + works)
        taken -= sum(end(name) for name in ends)
    return most


@dataclass(frozen=True)
class LayerSummary:
    """The costs of one layer.

    shapes: of its tops. parameters: the elements of its learnable blobs. multiply_adds: with weights, in one forward pass; None
    if the layer's class does not define them. bytes: of the data of tops that share no memory with a bottom.
    """

    name: str
    type: str
    bottoms: list[str]
    tops: list[str]
    shapes: list[tuple[int, ...]]
    parameters: int
    multiply_adds: int | None
    bytes: int


@dataclass(frozen=True)
class NetSummary:
    """All layers of a net, in order, with totals; shared weights count once.

    memory: the peak of a run. forks: a sentence for each kind of the types that forks disagree on. loops: a sentence on the
    layers that can run compiled, or "".
    """

    layers: list[LayerSummary]
    parameters: int
    parameter_bytes: int
    memory: MemoryNeeds
    forks: list[str]
    loops: str

    @property
    def multiply_adds(self) -> int:
        """The multiply-adds of the layers whose classes define them."""
        return sum(layer.multiply_adds or 0 for layer in self.layers)

    @property
    def not_counted(self) -> list[str]:
        """The types of the layers whose classes define no multiply-adds."""
        return sorted({layer.type for layer in self.layers if layer.multiply_adds is None})

    @property
    def blob_bytes(self) -> int:
        """The bytes of all blobs' data: what a forward pass holds besides the weights."""
        return sum(layer.bytes for layer in self.layers)


def summarize(net: Net, rois: int | None = None) -> NetSummary:
    """Return a summary of a net at its current input shapes, without a forward pass. The net and its blobs do not change.

    rois: the number of rois that Proposal gives, by default the most that the settings of its phase allow
    (RPN_POST_NMS_TOP_N). ProposalTarget samples BATCH_SIZE of them; RoIData without an RPN gives BATCH_SIZE.
    """
    with state_kept(net):
        _reshape(net, rois)
        return _summary(net)


def _summary(net: Net) -> NetSummary:
    """Return the summary at the current shapes of all blobs."""
    counted: set[int] = set()
    layers = []
    for node in net.nodes:
        layer, bottoms, tops = node.layer, node.bottoms, node.tops
        # In-place tops, and views such as Reshape's, need no memory.
        own = [top for top in tops if not any(top is b or top.shares_data_with(b) for b in bottoms) and id(top) not in counted]
        own = [] if isinstance(layer, Split) else own
        counted.update(id(top) for top in own)
        layers.append(
            LayerSummary(
                layer.name,
                layer.type,
                node.bottom_names,
                node.top_names,
                [top.shape for top in tops],
                sum(blob.count for blob in layer.blobs),
                layer.costs(bottoms, tops).multiply_adds,
                sum(top.count * top.dtype.itemsize for top in own),
            )
        )
    parameters = sum(blob.count for blob in net.learnable_params)
    return NetSummary(layers, parameters, parameters * net.dtype.itemsize, memory_needs(net), _forks(net), _loops(net))


def _forks(net: Net) -> list[str]:
    """Return sentences on the variants chosen, and on those that depend on the weights."""
    chosen = list(net.forks.items())
    for layer in net.layers:
        if isinstance(layer, Forked) and layer.is_ambiguous:
            chosen.append((layer.name, Choice(layer.type, candidates(layer.kinds), "its weights will decide")))
    return grouped(chosen)


def _loops(net: Net) -> str:
    able = [layer.type for layer in net.layers if any(loops_of(layer))]
    if not able:
        return ""
    layers = f"{len(able)} of {len(net.layers)} layers ({', '.join(sorted(set(able)))})"
    return f"loops of {layers}: {description()}"


def _reshape(net: Net, rois: int | None) -> None:
    """Reshape all layers. Tops with a row for each roi get `rois` rows, or the usual number."""
    for node in net.nodes:
        node.layer.reshape_pass(node.bottoms, node.tops)
        if isinstance(node.layer, DynamicTops) and node.layer.dynamic_rois:
            node.layer.assume_rois(node.bottoms, node.tops, rois)


class Times:
    """The milliseconds of each layer's forward and backward; in GPU mode measured on the device (events)."""

    def __init__(self, net: Net) -> None:
        self._forward = [0.0] * len(net.layers)
        self._backward = [0.0] * len(net.layers)
        self._running: list[tuple[list[float], int, Stopwatch]] = []
        self._start: Stopwatch | float = 0.0
        net.before_forward(self._begin)
        net.before_backward(self._begin)
        net.after_forward(lambda i: self._end(self._forward, i))
        net.after_backward(lambda i: self._end(self._backward, i))

    @property
    def forward(self) -> list[float]:
        """Each layer's forward, summed over all passes."""
        self._collect()
        return self._forward

    @property
    def backward(self) -> list[float]:
        """Each layer's backward, summed over all passes."""
        self._collect()
        return self._backward

    def _begin(self, _: int) -> None:
        self._start = Stopwatch(current()) if gpu_mode() else time.perf_counter()

    def _end(self, times: list[float], i: int) -> None:
        if isinstance(self._start, Stopwatch):
            self._start.stop()
            self._running.append((times, i, self._start))  # read later: waiting for the event here would stall the GPU
        else:
            times[i] += (time.perf_counter() - self._start) * 1e3

    def _collect(self) -> None:
        running, self._running = self._running, []
        for times, i, watch in running:
            times[i] += watch.milliseconds()
