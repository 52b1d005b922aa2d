"""The communication of a solver with other ranks. Exchange is for a single process; minicaffe.mpi has the one for MPI.

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
    """The exchange of a single process: rank 0 of 1. Rank 0 tests and writes snapshots."""

    rank = 0
    count = 1

    def begin(self, solver: SGDSolver, iterations: int) -> None:
        """Prepare for the next iterations. Raises SolverError if the ranks' nets, weights or data differ."""

    def alone(self) -> AbstractContextManager[None]:
        """Return a context manager for rank 0's own work. The other ranks wait without a timeout.

        No other method is called in its block.
        """
        return nullcontext()

    def gradients(self) -> AbstractContextManager[None]:
        """Return a context manager for an iteration's last pass, at whose end the diffs become means over the ranks."""
        return nullcontext()

    def mean(self, loss: float) -> float:
        """Return the mean of the ranks' losses."""
        return loss

    def agree(self, action: Action) -> Action:
        """Return the action requested in any rank; a stop takes precedence over a snapshot."""
        return action

    def check_weights(self, solver: SGDSolver) -> None:
        """Raise SolverError if the ranks' weights differ."""

    def states(self, own: State) -> State:
        """Return rank 0's running state; with several ranks also each rank's part, as `ranks`."""
        return own
