"""The process-wide state of the process that starts a run, to be applied in its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from minicaffe import files, limits, threads
from minicaffe.cuda.blas import allow_tf32
from minicaffe.mode import set_mode_gpu


@dataclass(frozen=True)
class Rules:
    """Threads, precision, limits, and the files and modules that prototxts may name.

    folder: the working directory, if workers have it.
    """

    threads: int
    gpu: bool
    tf32: bool = False
    modules: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)
    allowed: tuple[str, ...] = field(default_factory=files.allowed)
    limits: Mapping[str, int] = field(default_factory=lambda: {name: getattr(limits, name) for name in limits.NAMES})

    def apply(self) -> None:
        """Apply the rules to this process. Raises DeviceError if a GPU is wanted and there is none."""
        from minicaffe.aliases import serve_as_caffe
        from minicaffe.layers.python.python import allow_module

        if os.path.isdir(self.folder):  # a worker on another machine may lack it
            os.chdir(self.folder)
        threads.set_num_threads(self.threads)
        for name, most in self.limits.items():
            setattr(limits, name, most)
        for path in self.allowed:
            files.allow_path(path)
        if self.modules:
            serve_as_caffe()  # a module of Python layers begins with `import caffe`
        for module in self.modules:
            allow_module(module, os.getcwd())
        if self.gpu:
            set_mode_gpu()
            allow_tf32(self.tf32)
