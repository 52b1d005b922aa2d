"""The solver's Exchange with other ranks, through MPI."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.training.exchange import Exchange
from minicaffe.training.running_state import State, of_rank
from minicaffe.training.signals import Action
from minicaffe.training.solver import SGDSolver

from .buckets import Bucket, Gradients
from .cuda_aware import all_on_device
from .ranks import Ranks
from .sameness import check_same, solver_facts, weight_facts

ORDER = [Action.NONE, Action.SNAPSHOT, Action.STOP]
"""From the weakest to the strongest."""


class RankExchange(Exchange):
    """The exchange of one solver with those of the other ranks."""

    def __init__(self, solver: SGDSolver, ranks: Ranks) -> None:
        self.ranks, self.rank, self.count = ranks, ranks.rank, ranks.count
        self._begun = False
        self.on_device = all_on_device(ranks)
        make: Callable[[list[Blob], int], Bucket] = Bucket
        if self.on_device:
            from .device_buckets import DeviceSums

            make = DeviceSums().bucket
        self.sums = Gradients(solver.net, ranks, solver.param.layer_wise_reduce, make)

    def begin(self, solver: SGDSolver, iterations: int) -> None:
        check_same(self.ranks, solver_facts(solver, self._begun) | {"the number of iterations to do": iterations})
        self._begun = True

    def alone(self) -> AbstractContextManager[None]:
        # rank 0 alone writes and tests; it tells the others that it is busy
        return nullcontext() if self.rank else self.ranks.busy()

    def gradients(self) -> AbstractContextManager[None]:
        return self.sums.averaged()

    def mean(self, loss: float) -> float:
        return self.ranks.mean(loss)

    def agree(self, action: Action) -> Action:
        return ORDER[self.ranks.largest(ORDER.index(action))]  # a signal that one rank received counts for all

    def check_weights(self, solver: SGDSolver) -> None:
        check_same(self.ranks, weight_facts(solver.net, trained=True), f" at iteration {solver.iter}")

    def states(self, own: State) -> State:
        first: State = self.ranks.gather(None if self.rank else own)[0]
        return {**first, "ranks": self.ranks.gather(of_rank(own, first, dict(rng.generator().bit_generator.state)))}
