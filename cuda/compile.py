"""Compilation of cuda/<stem>.cu to launchable kernels: machine code, its modules and the arguments' types.

Kernels.bind("relu.relu", float32) -> compiled(...): kept, or made by the first compiler that does -> loaded -> prepared
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.errors import DeviceError, Error
from minicaffe.files import replacing, unlinked
from minicaffe.process_fork import renewed

from . import source
from .compilers import RefusedError, compilers

logger = logging.getLogger("minicaffe.cuda")


class Kernels:
    """The kernels of one device, compiled and loaded on first use. Its context must be current."""

    def __init__(self, driver: Any, name: str, capability: tuple[int, int]) -> None:
        self._driver, self._device, self._capability = driver, name, capability
        self.bound: dict[tuple[str, DTypeLike], Callable[..., None]] = {}
        self._modules: dict[tuple[str, np.dtype[Any]], Any] = {}
        self._lock = renewed(threading.Lock())

    def bind(self, kernel: str, dtype: DTypeLike) -> Callable[..., None]:
        """Return a function that launches the kernel "stem.name" for REAL = dtype, kept in `bound`.

        Its arguments are grid, block, the driver's stream and the kernel's arguments.
        """
        stem, _, name = kernel.partition(".")
        kinds = source.signatures(stem)
        if name not in kinds:
            raise DeviceError(f"cuda/{stem}.cu has no kernel {name}; it has {', '.join(kinds)}")
        real = np.dtype(dtype)
        function = self._module(stem, real).get_function(name)
        function.prepare("".join(real.char if kind == "REAL" else kind for kind in kinds[name]))
        launch: Callable[..., None] = function.prepared_async_call
        self.bound[kernel, dtype] = launch
        return launch

    def _module(self, stem: str, dtype: np.dtype[Any]) -> Any:
        with self._lock:
            if (stem, dtype) not in self._modules:
                image = compiled(stem, dtype, self._capability)
                try:
                    self._modules[stem, dtype] = self._driver.module_from_buffer(image)
                except self._driver.Error as error:
                    raise DeviceError(f"loading cuda/{stem}.cu on {self._device}: {error}") from error
            return self._modules[stem, dtype]


def compiled(stem: str, dtype: np.dtype[Any], capability: tuple[int, int]) -> bytes:
    """Return cuda/<stem>.cu as machine code for REAL = dtype, from the user's cache folder or compiled.

    Raises DeviceError with the compilers' messages, which name file and line.
    """
    real = "float" if dtype == np.float32 else "double"
    text, arch = source.text(stem), "sm_{}{}".format(*capability)
    refused = ""
    for compiler in compilers():
        kept = _kept(compiler.version, text, real, arch)
        with suppress(OSError):
            return kept.read_bytes()
        try:
            code = compiler.compile(text, real, arch)
        except RefusedError as error:
            refused += f"\n{compiler.version}:\n{error}"
            continue
        if refused:
            logger.warning("cuda/%s.cu is compiled by %s, because this compiler refused it:%s", stem, compiler.version, refused)
        with suppress(OSError, Error):  # without a writable cache, compiling only takes longer
            kept.parent.mkdir(parents=True, exist_ok=True)
            with replacing(unlinked(kept)) as path:  # other processes see the whole file or none
                path.write_bytes(code)
        return code
    raise DeviceError(f"cuda/{stem}.cu does not compile for REAL = {real}, {arch}:{refused}")


def _kept(version: str, text: str, real: str, arch: str) -> Path:
    """Return the file in the cache folder. Its name depends on everything that the code depends on."""
    folder: Path = importlib.import_module("platformdirs").user_cache_path("minicaffe")  # PyCUDA installs platformdirs
    return folder / f"{hashlib.sha256(repr((version, real, arch, text)).encode()).hexdigest()}.cubin"
