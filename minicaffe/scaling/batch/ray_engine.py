"""Parts on Ray: a pool of actors, each with its own net, maps a Ray Data dataset with a row per part.

    driver: names of a part's images -> Ray Data -> actor: reads them, detects, writes the part's file -> counts -> driver

Only names and counts pass between processes, so memory does not grow with the number of images. Ray Data sends an actor two
parts at a time. The object store holds the weights once, as arrays, so the file may be on the driver's disk only. An actor that
dies is restarted, and so is its part. Ray would retry forever; here, a part that kills MOST_TRIES actors ends the run.

Ray starts nothing on a node whose CPUs are all requested. Actors that request them all would leave none for Ray's other tasks,
and everything would wait forever. Here actors request at most 0.9 of a node's CPUs: 0.9 of a CPU each, or less if there are
more actors than CPUs.
"""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minicaffe.errors import Error
from minicaffe.parameters import Weights

from .folder import Folder
from .recipe import Recipe
from .rules import Rules
from .run import Done, Part, Run, detected, do_part

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
        """Return the pool with at most as many actors as parts."""
        return replace(self, size=min(self.size, parts))


def pool(nodes: Sequence[dict[str, float]], workers: int | None, threads: int, gpu: bool) -> Pool:
    """Return the pool for nodes with these resources, each as {"CPU": 8.0, "GPU": 1.0}.

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


MOST_TRIES = 4
"""The most attempts at a part whose actors die."""
AT_ONCE = 2
"""Parts assigned to an actor: the current one and the next."""


class Tries:
    """An actor that counts how often each part was begun but not finished.

    A finished part may be begun again if its actor died in the next part before Ray had the answer.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Count a part's beginning; return the count."""
        self._counts[number] += 1
        return self._counts[number]

    def end(self, number: int) -> None:
        self._counts[number] = 0


class Worker:
    """An actor that makes a net once, then does a part per call. weights: a reference to the object store, in a list.

    An Error is returned as text, because Ray surrounds raised exceptions with pages of text.
    """

    def __init__(self, recipe: Recipe, rules: Rules, weights: Sequence[Any], folder: Folder, tries: Any) -> None:
        import ray

        self.folder, self.tries = folder, tries
        self.failure = ""
        try:
            rules.apply()
            arrays: Weights = ray.get(weights[0])
            self.pipeline = recipe.pipeline(arrays)
        except Error as error:
            self.failure = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        done = [self._do(pickle.loads(content)) for content in batch["part"]]
        return {name: [one[name] for one in done] for name in done[0]}

    def _do(self, part: Part) -> dict[str, Any]:
        import ray

        tries = ray.get(self.tries.begin.remote(part.number))
        done, failure = Done(), self.failure or self._given_up(part, tries)
        if not failure:
            try:
                done = do_part(map(partial(detected, self.pipeline), part.images.pictures()), part, self.folder)
            except Error as error:
                failure = str(error)
            ray.get(self.tries.end.remote(part.number))
        return {"number": part.number, "tries": tries, "failure": failure, "done": pickle.dumps(done)}

    def _given_up(self, part: Part, tries: int) -> str:
        if tries <= MOST_TRIES:
            return ""
        last = part.first + len(part.images) - 1
        return (
            f"part {part.number} (images {part.first} to {last}) killed {MOST_TRIES} actors: an image may need more memory than"
            " a worker has; run the same command to try again"
        )


def run_ray(
    ray: Any,
    recipe: Recipe,
    rules: Rules,
    weights: Weights,
    run: Run,
    pool: Pool,
    *,
    tell: Callable[[Done], object],
    say: Callable[[str], object],
) -> None:
    """Do the remaining parts of run.

    tell: called after each part; say: called with a sentence for each repeated part. Raises Error if a part fails.
    """
    rows = [{"part": pickle.dumps(part)} for part in run.to_do()]  # bytes, which Ray Data passes unchanged
    if not rows:
        return
    _quiet(ray.data.DataContext.get_current())
    stored = ray.put({name: list(arrays) for name, arrays in weights.items()})
    # num_cpus=0 lets it start next to workers that request all CPUs.
    tries = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here(ray))(Tries).remote()
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(  # a block per part: the unit of retries
        Worker,
        fn_constructor_kwargs={"recipe": recipe, "rules": rules, "weights": [stored], "folder": run.folder, "tries": tries},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=pool.size, max_tasks_in_flight_per_actor=AT_ONCE),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )
    try:
        for row in done.iter_rows():
            if row["failure"]:
                raise Error(row["failure"])
            if row["tries"] > 1:
                say(f"part {row['number']} was repeated: its worker died")
            tell(pickle.loads(row["done"]))
    except ray.exceptions.RayError as error:
        raise Error(f"Ray: {str(error).strip().splitlines()[-1]}") from error


def here(ray: Any) -> Any:
    """Return the strategy that places an actor on the driver's node, so that it does not die with another node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _quiet(context: Any) -> None:
    """Turn off Ray Data's display."""
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
