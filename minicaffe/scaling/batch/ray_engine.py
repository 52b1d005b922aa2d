"""Parts on Ray: a Ray Data dataset with a row for each part goes through a pool of actors, each with a net of its own.

    driver: names of a part's images -> Ray Data -> actor: reads them, detects, writes the part's file -> counts -> driver

What goes between processes is names and counts, so that memory does not grow with the number of images; Ray Data hands an actor
two parts at a time. The weights are put into the object store once, as arrays: the actors of a node copy them from its shared
memory, also where the file is on the driver's disk alone. An actor that dies is started again, and its part is done again: its
file is written by whoever ends it, whole. Ray would try for ever: a part that has ended MOST_TRIES actors ends the run.
"""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from minicaffe.errors import Error

from .detector import Arrays, Recipe
from .folder import Folder
from .parts import Done, Part, do_part
from .ray_pool import Pool
from .rules import Rules
from .run import Run

MOST_TRIES = 4
"""How often a part is begun, where its actors die over it."""
AT_ONCE = 2
"""Parts that an actor has: one that it does, and the next."""


class Tries:
    """An actor that counts how often each part was begun and not ended.

    A part that was ended may come again: its actor died over the next one before Ray had its answer.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """The count, this time included."""
        self._counts[number] += 1
        return self._counts[number]

    def end(self, number: int) -> None:
        self._counts[number] = 0


class Worker:
    """What an actor does: a net made once, then a part a call. weights: one reference to the object store.

    What goes wrong as an Error is handed back as a text, since Ray puts pages of its own around what is raised.
    """

    def __init__(self, recipe: Recipe, rules: Rules, weights: Sequence[Any], folder: Folder, tries: Any) -> None:
        import ray

        self.folder, self.tries = folder, tries
        self.failure = ""
        try:
            rules.apply()
            arrays: Arrays = ray.get(weights[0])
            self.detector = recipe.detector(arrays)
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
                done = do_part(self.detector, part, self.folder)
            except Error as error:
                failure = str(error)
            ray.get(self.tries.end.remote(part.number))
        return {"number": part.number, "tries": tries, "failure": failure, **done._asdict()}

    def _given_up(self, part: Part, tries: int) -> str:
        if tries <= MOST_TRIES:
            return ""
        last = part.first + len(part.images) - 1
        return (
            f"part {part.number} (images {part.first} to {last}) has ended {MOST_TRIES} actors, and is given up: an image may"
            " take more memory than a worker has; start again to try it anew"
        )


def run_ray(
    ray: Any,
    recipe: Recipe,
    rules: Rules,
    weights: Arrays,
    run: Run,
    pool: Pool,
    *,
    tell: Callable[[Done], object],
    say: Callable[[str], object],
) -> None:
    """Do the parts that are left of run. tell: called after each part; say: with a sentence for each that was done again.
    Raises Error where a part cannot be done."""
    rows = [{"part": pickle.dumps(part)} for part in run.to_do()]
    if not rows:
        return
    _quiet(ray.data.DataContext.get_current())
    stored = ray.put({name: list(arrays) for name, arrays in weights.items()})
    tries = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here(ray))(Tries).remote()
    done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        Worker,
        fn_constructor_kwargs={"recipe": recipe, "rules": rules, "weights": [stored], "folder": run.folder, "tries": tries},
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=pool.size, max_tasks_in_flight_per_actor=AT_ONCE),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus,
    )
    try:
        for row in done.iter_rows():
            number, tries, failure = (row.pop(name) for name in ("number", "tries", "failure"))
            if failure:
                raise Error(failure)
            if tries > 1:
                say(f"part {number} was done again: a worker had died over it")
            tell(Done(**row))
    except ray.exceptions.RayError as error:
        raise Error(f"Ray: {str(error).strip().splitlines()[-1]}") from error


def here(ray: Any) -> Any:
    """To place an actor on the driver's node, so that it does not go with another one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _quiet(context: Any) -> None:
    """Ray Data's own display off."""
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.enable_auto_log_stats = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
