"""Data-parallel training on MPI: each rank reads a shard of the data, and all make the same updates.

    with minicaffe.mpi.training() as ranks:            # in every process that mpiexec started
        solver = minicaffe.get_solver("solver.prototxt", seed=1)
        with ranks.train(solver):
            solver.solve()

`mpiexec -n 2 minicaffe train solver.prototxt --engine mpi` does this. It needs the extra minicaffe[mpi]; only this package
imports mpi4py. Source of the method: Caffe's parallel.cpp (NCCL).
"""

from .job import TIMEOUT, Job, training

__all__ = ["TIMEOUT", "Job", "training"]
