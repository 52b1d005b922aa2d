"""Consecutive kept steps as lists of jobs: a program of an execution plan.

Python between two layers would be slow, because the layers push its code out of the cache.
"""

from __future__ import annotations

import time
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from minicaffe.blob import Blob, MemoryState, SyncedMemory, current_version
from minicaffe.plan import ExecutionPlan, Fingerprint, FusedGroup

from .arena import Arena, ArenaSlice
from .jobs import Job, JobList, KeptStep

SECONDS = 0.1
"""Approximate seconds between two checks for Ctrl-C."""


class _KeptRun:
    """The kept steps of consecutive chains, which run as one list of jobs.

    behind: the chain that would follow. arena: for the inner blobs' memory, or None.
    """

    def __init__(self, chains: Sequence[FusedGroup], behind: FusedGroup | None, arena: Arena | None) -> None:
        self.end = chains[-1].index + len(chains[-1].nodes)
        """The layer after the last one."""
        self._made = [(one, one.made) for one in chains if one.made]
        self._all_made = Fingerprint.joined([made for _, made in self._made])
        self._steps = [(one, one.step) for one in chains if isinstance(one.step, KeptStep)]
        owned = [(one.nodes[0].layer, step, job) for one, step in self._steps for job in step.jobs]
        self._owners, jobs = [(layer, step) for layer, step, _ in owned], [job for *_, job in owned]
        """The layer and step of each job."""
        self._jobs, self._tops = JobList([job.job for job in jobs]), [job.top for job in jobs]
        self._before = [(one.nodes[0].layer, before) for one, step in self._steps if (before := step.before) is not None]
        self._addresses = dict.fromkeys((blob for job in jobs for blob in job.blobs), 0)
        """The addresses of the blobs' numbers in the jobs."""
        for blob in self._addresses:
            blob.watched = True
        self._watched: list[SyncedMemory] = []
        """The watched memory of the tops: each write must be recorded."""
        self._latest_move: object = None
        self._first, self._arena = chains[0].index, arena
        self._loan: ArenaSlice | None = None
        made = {top for one in chains for top in one.nodes[0].tops}
        self._given = [blob for one in chains for blob in one.nodes[0].bottoms if blob not in made] if arena else []
        """Tops of layers before the list, whose memory may have been freed."""
        self._chains, self._behind = chains, behind
        self._keeping = _keeping(chains)
        self._prepared: object = None
        """The latest change when the steps' `before` last ran."""

    def may_run(self) -> bool:
        """Return whether the steps are still current, and the next chain cannot join them."""
        if self._prepared is not current_version():
            if any(one.made is not made for one, made in self._made) or (self._behind and self._behind.may_run_kept()):
                return False
            self._keeping = _keeping(self._chains)
        return self._all_made.is_current() and not any(one.backward_lacks() for one in self._keeping)

    def run(self, at_once: int) -> int:
        """Run the jobs, at_once of them between two checks for Ctrl-C; return the number for the next run."""
        latest = current_version()
        if self._prepared is not latest or self._latest_move is not Job.latest_move:  # rare
            with self._opened():
                self._share()
                self._place()
            self._watched = [top.data_memory for top in self._tops if top.data_memory.watched]
            self._prepared = latest  # the older version: if the steps above changed something, they must run again
        for blob in self._given:
            blob.data_address("read")  # raises Error if the memory was freed
        if self._arena is not None and self._loan is not None:
            self._arena.begins(self._loan)
        for memory in self._watched:
            memory.wrote()
        done = 0
        while done < len(self._owners):
            run, start = partial(self._jobs.run, done, done + at_once), time.perf_counter()
            # the job that needs the most memory is the one that fails without it
            behind = self._owners[self._jobs.largest][0].guard(run)
            fitting = (behind - done) * SECONDS / max(1e-9, time.perf_counter() - start)
            at_once, done = max(1, min(2 * at_once, int(fitting))), behind
            layer, step = self._owners[done - 1]
            if step.mends:
                with self._opened():
                    layer.guard(step.fixup)
        if self._arena is not None and self._loan is not None:
            self._arena.has_run(self._loan)
        else:  # backward reads this
            for one, _ in self._steps:
                one.together = True
        return at_once

    def _opened(self) -> AbstractContextManager[None]:
        """Return a context in which the inner blobs' memory may be used; lend it again if the blobs have other memory."""
        if self._arena is None:
            return nullcontext()
        if self._loan is None or not self._loan.holds():
            self._loan = None  # before memory is allocated again
            self._loan = self._arena.lend(self._first, self.end, self._share)
        return self._loan.opened()

    def _share(self) -> None:
        for layer, before in self._before:
            layer.guard(before)

    def _place(self) -> None:
        if self._latest_move is Job.latest_move and all(_lies_at(blob, address) for blob, address in self._addresses.items()):
            return
        self._latest_move = None
        for one, step in self._steps:
            one.nodes[0].layer.guard(step.place)
        self._addresses = {blob: blob.data_memory.address for blob in self._addresses}
        self._latest_move = Job.latest_move


class JobLists:
    """The lists of jobs of a plan's chains."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._chains, self._memory = plan.chains, plan.memory
        self._arena = Arena.of(plan.memory) if plan.memory else None
        self._asked_for: frozenset[str] = frozenset()
        self._at_once = 1
        """The number of jobs between two checks for Ctrl-C."""
        self._runs: dict[tuple[int, int], _KeptRun] = {}
        """Runs by their first layer and the last layer that could follow."""

    def begin(self, first: int, last: int) -> None:
        asked_for = self._memory.asked_for_inner() if self._memory else frozenset()
        if asked_for != self._asked_for:  # the arena may hold other blobs
            self._asked_for = asked_for
            self._runs.clear()

    def end(self, last: int) -> None:
        if self._arena:
            self._arena.end(last)

    def run(self, first: int, last: int) -> int:
        run = self._runs.get((first, last))
        if run is not None and not run.may_run():
            run = None
            self._runs.clear()  # also drops what old steps hold, before new steps are made
        if run is None:
            found: list[FusedGroup] = []
            written = set[SyncedMemory]()
            i = first
            while (chain := self._within(i, last)) and chain.may_run_kept() and not _has_weights_in(chain, written):
                found.append(chain)
                written.update(top.data_memory for top in chain.nodes[0].tops)
                i += len(chain.nodes)
            if not found:
                return first
            run = self._runs[first, last] = _KeptRun(found, chain, self._arena)
        self._at_once = run.run(self._at_once)
        return run.end

    def _within(self, first: int, last: int) -> FusedGroup | None:
        """Return the chain that begins at layer `first`, if it ends by layer `last`; else None."""
        chain = self._chains.get(first)
        return chain if chain is not None and first + len(chain.nodes) - 1 <= last else None


def _lies_at(blob: Blob, address: int) -> bool:
    """Return whether the blob's data is at this address, and nowhere else."""
    memory = blob.data_memory
    return memory.address == address and memory.state is MemoryState.HOST


def _keeping(chains: Sequence[FusedGroup]) -> list[FusedGroup]:
    """Return the chains of which backward may lack something."""
    return [one for one in chains if any(node.needs_backward for node in one.keeping)]


def _has_weights_in(chain: FusedGroup, memories: Container[SyncedMemory]) -> bool:
    """Return whether a layer's weights are in one of these memories, to which a list must then not write before it."""
    return any(blob.data_memory in memories for node in chain.nodes for blob in node.layer.blobs)
