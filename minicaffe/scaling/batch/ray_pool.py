"""How many actors a run takes on Ray, and what each asks for.

Ray counts CPUs and places nothing where the count is used up, so that actors that ask for all of them would leave none to
whatever else Ray must start, and all wait for ever. Here actors ask for 0.9 of a node's CPUs at most: for 0.9 of one each, or
for less where more actors are wanted than there are CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minicaffe.errors import Error

SHARE = 0.9
"""Of a node's CPUs, and of a CPU."""
LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Pool:
    """size actors, each with this many CPUs and GPUs."""

    size: int
    cpus: float
    gpus: float

    def at_most(self, parts: int) -> Pool:
        """No more actors than there are parts to do."""
        return replace(self, size=min(self.size, parts))


def pool(nodes: Sequence[dict[str, float]], workers: int | None, threads: int, gpu: bool) -> Pool:
    """How many actors, and what each asks for. nodes: the resources of each, as {"CPU": 8.0, "GPU": 1.0}.

    workers: None for as many as there are GPUs, or CPUs for `threads` each. Raises Error where there is room for none.
    """
    cpus = [node.get("CPU", 0.0) for node in nodes]
    gpus = [int(node.get("GPU", 0.0)) for node in nodes]
    has = f"{len(nodes)} node{'s' * (len(nodes) != 1)} with {sum(cpus):g} CPUs and {sum(gpus):g} GPUs"
    if gpu:
        if not sum(gpus):
            raise Error(f"the Ray cluster has no GPU for an actor ({has})")
        size = min(workers or sum(gpus), sum(gpus))
        per_node = [cpu / many for cpu, many in zip(cpus, gpus) if many]
        return Pool(size, round(min(SHARE, SHARE * min(per_node)), 4), 1.0)
    size = workers or max(1, sum(int(cpu // threads) for cpu in cpus))
    share = SHARE * threads
    while sum(int(SHARE * cpu / share + 1e-9) for cpu in cpus) < size:
        share *= SHARE
        if share < LEAST_SHARE:
            raise Error(f"the Ray cluster has no room for {size} actor{'s' * (size != 1)} ({has})")
    return Pool(size, round(share, 4), 0.0)
