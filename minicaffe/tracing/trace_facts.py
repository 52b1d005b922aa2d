"""The facts of a layer in a trace, the memory that blobs use, and notes on reduced data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minicaffe.blob import Blob, MemoryState, SyncedMemory
from minicaffe.forked import choice_of
from minicaffe.formats.prototxt import to_text
from minicaffe.layer import Layer
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net
from minicaffe.parameters import weight_name
from minicaffe.registry import explains

from .receptive_fields import reads_of
from .trace import LayerFacts, ParamShot, Step
from .trace_example import Example
from .trace_roi import RoiShot
from .trace_shots import MOST_TILES, SAMPLED, shot


@dataclass(frozen=True)
class Ran:
    """What forward of a layer leaves to show."""

    roi: RoiShot | None = None
    example: Example | None = None


def layer_facts(net: Net, i: int, layer: Layer, ran: Ran, went_back: bool, room: int) -> LayerFacts:
    """Of layer i, which may still be in setup. went_back: whether backward ran it; room: bytes for a blob's tiles."""
    node = net.nodes[i] if i < len(net.nodes) else None  # None: in setup, or failed there
    tops, bottoms = (node.tops, node.bottoms) if node else ([], [])
    bottom_names = list(layer.param.bottom)
    top_names = node.top_names if node else list(layer.param.top)
    shared = {id(memory) for blob in bottoms for memory in (blob.data_memory, blob.diff_memory)}
    return LayerFacts(
        name=layer.name,
        type=layer.type,
        place=str(layer.source.at()) if layer.source else None,
        fork=str(choice_of(layer) or ""),
        bottoms=bottom_names,
        tops=list(top_names),
        in_place=bool(set(top_names) & set(bottom_names)),
        is_split=isinstance(layer, Split),
        param=to_text(layer.param),
        top_bytes=bytes_in_use(tops, without=shared),
        params=[_param(layer, j, went_back, room) for j in range(len(layer.blobs))],
        roi=ran.roi,
        reads=[[reads_of(node, b, t) for b in range(len(bottoms))] for t in range(len(tops))] if node else [],
        covered=type(layer) in explains,
        example=ran.example,
    )


def _param(layer: Layer, j: int, went_back: bool, room: int) -> ParamShot:
    blob = layer.blobs[j]
    diff = shot(blob.read_diff(), room, weights=True) if went_back and layer.param_propagate_down[j] else None
    return ParamShot(weight_name(layer, j), shot(blob.read_data(), room, weights=True), diff)


def reduced(steps: Sequence[Step], layers: Sequence[LayerFacts]) -> list[str]:
    """Notes on data that is shrunk, sampled or cut."""
    notes = []
    blobs = [blob.shot for step in steps for blob in step.blobs]
    shots = blobs + [part for layer in layers for param in layer.params for part in (param.data, param.diff) if part]
    kept = [item.tiles for item in shots if item.tiles]
    if any(tiles.shrunk > 1 for tiles in kept):
        most = max(tiles.shrunk for tiles in kept)
        notes.append(f"large maps are shrunk: a pixel is the mean of up to {most} x {most} values")
    if any(len(tiles.pixels) < tiles.channels for tiles in kept):
        notes.append(f"blobs with many maps show the first ones, at most {MOST_TILES}, fewer if large")
    if any(item.histogram and item.histogram.every > 1 for item in shots):
        notes.append(f"histograms of more than {SAMPLED} values count every k-th")
    if any(item.shape[0] > 1 for item in blobs if item.tiles):
        notes.append("the maps are of the first item of a batch")
    return notes + [note for layer in layers if layer.roi for note in layer.roi.notes(layer.name)]


class TakenMemory:
    """bytes_in_use of all blobs seen, updated blob by blob."""

    def __init__(self) -> None:
        self.bytes = 0
        self._memories: dict[int, tuple[Blob, tuple[SyncedMemory, SyncedMemory]]] = {}
        self._users: Counter[int] = Counter()
        self._bytes: dict[int, int] = {}

    def look(self, blobs: Iterable[Blob]) -> None:
        """Update these blobs."""
        for blob in blobs:
            memories = blob.data_memory, blob.diff_memory
            self._users.update(map(id, memories))  # before the old ones are dropped: an unchanged memory never has 0 users
            for memory in memories:
                taken = 0 if memory.state is MemoryState.UNINITIALISED else memory.size * memory.dtype.itemsize
                self.bytes += taken - self._bytes.get(id(memory), 0)
                self._bytes[id(memory)] = taken
            _, before = self._memories.get(id(blob), (blob, ()))
            self._memories[id(blob)] = blob, memories  # the blob too, lest another one get its id
            for memory in before:
                self._users[id(memory)] -= 1
                if not self._users[id(memory)]:
                    self.bytes -= self._bytes.pop(id(memory))


def bytes_in_use(blobs: Iterable[Blob], without: Iterable[int] = ()) -> int:
    """The memory of the data and diffs of these blobs; shared memory counts once. without: ids of memories to leave out."""
    taken = {
        id(memory): memory.size * memory.dtype.itemsize
        for blob in blobs
        for memory in (blob.data_memory, blob.diff_memory)
        if memory.state is not MemoryState.UNINITIALISED
    }
    return sum(taken.values()) - sum(taken.get(key, 0) for key in set(without))
