"""Loops: compiled by Numba where it is installed, Python where it is not; the cache on disk costs time and no more."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicaffe import kernels
from minicaffe.compiled import jit
from minicaffe.compiled.jit import loop
from minicaffe.errors import Error, install

MODULE = """
from minicaffe.compiled.jit import loop

@loop("T, T")
def times(a, b):
    return a * b

@loop("T[:,::1], T[::1], T[:,::1]")
def scaled_rows(x, scale, y):
    for i in range(len(x)):
        for j in range(x.shape[1]):
            y[i, j] = times(x[i, j], scale[i])
"""
USE = """
import sys
import numpy as np
import fixture_loops
from minicaffe import kernels
from minicaffe.compiled import jit
x, scale = np.arange(35, dtype=np.float32).reshape(5, 7), np.arange(5, dtype=np.float32)
y = np.empty_like(x)
if "compile" in sys.argv:
    fixture_loops.scaled_rows.compile(np.float32)
fixture_loops.scaled_rows(x, scale, y)
assert (y == x * scale[:, None]).all()
print(kernels.compiled(), len(fixture_loops.scaled_rows.dispatcher().signatures) if kernels.compiled() else 0)
"""

WARN_MEANWHILE = """
import threading, warnings
import numpy as np
import fixture_loops
from minicaffe import kernels
from minicaffe.compiled import jit
shown = []
warnings.showwarning = lambda message, *where: shown.append(str(message))
warnings.simplefilter("always")
filters, entered, enter = warnings.filters, [], warnings.catch_warnings.__enter__
warnings.catch_warnings.__enter__ = lambda block: entered.append(threading.current_thread().name) or enter(block)
jit.compile_ahead([(fixture_loops.scaled_rows, np.dtype(np.float32)), (fixture_loops.times, np.dtype(np.float64))])
given = 0
while any(thread.name == jit.AHEAD for thread in threading.enumerate()):
    warnings.warn(str(given))
    given += 1
assert given > 9, "nothing was compiled meanwhile"
assert shown == [str(i) for i in range(given)]
assert jit.AHEAD not in entered, "a block of the main thread that begins meanwhile would end with it"
assert warnings.filters is filters and len(fixture_loops.scaled_rows.dispatcher().signatures) == 1
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "fixture_loops.py"
    path.write_text(MODULE)
    return path


def use(module: Path, *arguments: str, code: str = USE, **variables: str) -> str:
    """What a process prints that runs the module's loop with these environment variables."""
    paths = os.pathsep.join([str(module.parent), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "NUMBA_CACHE_DIR": "", jit.VARIABLE: ""}
    environment |= variables
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def needs_numba() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")


def test_a_loop_runs_without_numba() -> None:
    @loop("T[::1], T[::1]")
    def doubled(x: Any, y: Any) -> None:
        for i in range(len(x)):
            y[i] = x[i] + x[i]

    y = np.zeros(3)
    with kernels.using("numpy"):
        assert not kernels.compiled()
        doubled(np.array([1.0, 2, 5]), y)
    assert y.tolist() == [2, 4, 10]


@pytest.mark.slow
def test_variable_chooses_the_way(module: Path) -> None:
    assert use(module, MINICAFFE_LOOPS="numpy") == "False 0"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        use(module, MINICAFFE_LOOPS="fast")
    assert "MINICAFFE_LOOPS must be one of auto, numpy, numba, got 'fast'" in raised.value.stderr


@pytest.mark.slow
def test_numba_without_its_compiler(module: Path) -> None:
    needs_numba()
    assert use(module, "compile", NUMBA_DISABLE_JIT="1") == "False 0"
    with pytest.raises(subprocess.CalledProcessError) as raised:
        use(module, NUMBA_DISABLE_JIT="1", MINICAFFE_LOOPS="numba")
    assert "NUMBA_DISABLE_JIT turns Numba's compiler off" in raised.value.stderr


def test_importing_minicaffe_does_not_import_numba() -> None:
    code = "import sys, minicaffe, minicaffe.cli; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_broken_numba_is_told_once_and_numpy_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_numba", None)
    monkeypatch.setattr(jit, "_use", None)
    monkeypatch.setattr(jit, "_problem", "")
    monkeypatch.delenv(jit.VARIABLE, raising=False)
    monkeypatch.setattr(jit, "installed", lambda: "0.0")
    monkeypatch.setitem(sys.modules, "numba", None)  # what `import numba` then does: ImportError
    with pytest.warns(UserWarning, match="Numba is installed but cannot be imported"):
        assert not kernels.compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kernels.compiled()
    with pytest.raises(Error, match=re.escape(install("fast"))), kernels.using("numba"):
        pass


@pytest.mark.slow
def test_cached_on_disk_and_compiled_ahead(module: Path) -> None:
    needs_numba()
    assert use(module, "compile") == "True 1", "the call found another type than the one that was compiled ahead"
    assert list(module.parent.glob("__pycache__/*.nbc")), "nothing was cached"


@pytest.mark.slow
def test_a_change_of_a_loop_in_another_file_is_seen(module: Path) -> None:
    needs_numba()
    inner, outer = MODULE.partition('\n\n@loop("T[:')[::2]
    module.write_text(f'from other_loops import loop, times\n\n@loop("T[:{outer}')
    (other := module.with_name("other_loops.py")).write_text(inner)
    assert use(module) == "True 1"
    other.write_text(inner.replace("a * b", "a * b + 1"))
    with pytest.raises(subprocess.CalledProcessError, match="returned non-zero"):
        use(module)


@pytest.mark.slow
def test_what_is_cached_under_one_name_of_a_module_imports_no_other(module: Path) -> None:
    """Numba's cache belongs to the file, and imports the module by the name that it had when the code was made.

    Slow: two processes import Numba, and one compiles.
    """
    needs_numba()
    use(module)
    package = module.parent.parent / f"{module.parent.name}_as_a_package"
    package.symlink_to(module.parent)
    named = USE.replace("import fixture_loops", f"from {package.name} import fixture_loops")
    found = use(
        module,
        code=named + "print('fixture_loops' in sys.modules)",
        PYTHONPATH=os.pathsep.join([str(package.parent), str(module.parent), *sys.path]),
    )
    assert found.splitlines() == ["True 1", "False"]


@pytest.mark.slow
def test_compiling_in_the_background_keeps_no_warning_of_another_thread(module: Path) -> None:
    needs_numba()
    use(module, code=WARN_MEANWHILE)


SLOW = pytest.mark.slow
"""Of tests that start several processes, each of which imports Numba and compiles."""


@pytest.mark.slow
@pytest.mark.parametrize("harm", [pytest.param("read-only", marks=SLOW), "damaged"])
def test_a_cache_that_fails_costs_time_only(module: Path, harm: str) -> None:
    needs_numba()
    use(module)
    cache = module.parent / "__pycache__"
    for file in cache.glob("*.nb?"):
        file.write_bytes(b"\0\1")
    variables = {}
    if harm == "read-only":  # of no use against root, so a file lies in the folder's place
        for file in [*cache.iterdir()]:
            file.unlink()
        cache.rmdir()
        cache.write_text("")
        variables = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull}
    assert use(module, **variables) == "True 1"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers that send signals")
def test_a_loop_runs_once_even_if_a_signals_handler_raises_in_it() -> None:
    needs_numba()

    @loop("T[::1], int64")
    def counted(x: Any, steps: Any) -> None:
        x[0] = x[0] + 1
        for n in range(steps):
            x[1] = np.sin(x[1] + n)

    def handler(number: int, frame: object) -> None:
        raise TimeoutError("too slow")

    x = np.zeros(2)
    with kernels.using("numba"):
        counted(x, 0)
        before = signal.signal(signal.SIGVTALRM, handler)
        try:
            with pytest.raises(TimeoutError, match="too slow"):
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.02)  # of the processor's time
                counted(x, 10_000_000)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
    assert x[0] == 2


def test_a_loop_is_compiled_anew_when_what_it_is_made_of_changes() -> None:
    """max_pool calls what pooled_rows.py writes with the vectors of another package, tiles are made of the same vectors."""
    from minicaffe.compiled import pooling_methods, softmax, tiled_loops

    of_tiles, of_pooling, of_softmax = {"tiled_loops", "tiles", "vectors"}, {"pooled_rows", "vectors"}, {"softmax", "vectors"}
    for module, least in ((tiled_loops, of_tiles), (pooling_methods, of_pooling), (softmax, of_softmax)):
        found = {Path(file).stem for file in jit._files(module.__name__)}
        assert found >= least
        assert not found & {"blob", "net", "__init__"}
