"""What a solver asks of the ranks that train with it. Exchange is that of a training alone; minicaffe.mpi has the other.

The solver calls every method in all ranks, in the same order.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from .running_state import State
from .signals import Action

if TYPE_CHECKING:
    from .solver import SGDSolver


class Exchange:
    """A training alone: rank 0 of 1. rank 0 tests and writes snapshots."""

    rank = 0
    count = 1

    def begin(self, solver: SGDSolver, iterations: int) -> None:
        """Called before the first of so many iterations. Raises SolverError where ranks differ in net, weights or data."""

    def alone(self) -> AbstractContextManager[None]:
        """Around what rank 0 does while the others wait for it, however long; no other method is called in it."""
        return nullcontext()

    def gradients(self) -> AbstractContextManager[None]:
        """Around an iteration's last pass: on leaving, the learnable blobs' diffs are their means over the ranks."""
        return nullcontext()

    def mean(self, loss: float) -> float:
        """The mean of the ranks' losses."""
        return loss

    def agree(self, action: Action) -> Action:
        """What any rank was asked for; a stop before a snapshot."""
        return action

    def check_weights(self, solver: SGDSolver) -> None:
        """Raises SolverError where the ranks' weights are no longer alike."""

    def states(self, own: State) -> State:
        """Rank 0's running state; with more than one rank also all of them, as `ranks`."""
        return own
