"""The number of actors of a run on Ray, and their resources.

Ray starts nothing on a node whose CPUs are all requested. Actors that request them all would leave none for Ray's other tasks,
and everything would wait forever. Here actors request at most 0.9 of a node's CPUs: 0.9 of a CPU each, or less if there are
more actors than CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minicaffe.errors import Error

FRACTION = 0.9
"""Of a node's CPUs, and of a CPU."""
LEAST_FRACTION = 0.01


@dataclass(frozen=True)
class Pool:
    """`size` actors, each with this many CPUs and GPUs."""

    size: int
    cpus: float
    gpus: float

    def at_most(self, parts: int) -> Pool:
        """No more actors than there are parts to do."""
        return replace(self, size=min(self.size, parts))


def pool(nodes: Sequence[dict[str, float]], workers: int | None, threads: int, gpu: bool) -> Pool:
    """The pool for nodes with these resources, each as {"CPU": 8.0, "GPU": 1.0}.

    workers: None for one per GPU, or one per `threads` CPUs. Raises Error if there is no room for them.
    """
    cpus = [node.get("CPU", 0.0) for node in nodes]
    gpus = [int(node.get("GPU", 0.0)) for node in nodes]
    has = f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {sum(cpus):g} CPUs and {sum(gpus):g} GPUs"
    if gpu:
        if not sum(gpus):
            raise Error(f"the Ray cluster has no GPU for an actor ({has})")
        size = min(workers or sum(gpus), sum(gpus))
        per_node = [cpu / many for cpu, many in zip(cpus, gpus) if many]  # CPUs per GPU
        return Pool(size, round(min(FRACTION, FRACTION * min(per_node)), 4), 1.0)
    size = workers or max(1, sum(int(cpu // threads) for cpu in cpus))
    each = FRACTION * threads
    # actors that fit, node by node; 1e-9 against rounding
    while sum(int(FRACTION * cpu / each + 1e-9) for cpu in cpus) < size:
        each *= FRACTION
        if each < LEAST_FRACTION:
            raise Error(f"the Ray cluster has no room for {size} actor{'s' * (size != 1)} ({has})")
    return Pool(size, round(each, 4), 0.0)
