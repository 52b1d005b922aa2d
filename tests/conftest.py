"""Hypothesis without deadlines (machines are slow at times), with MINICAFFE_TEST_EXAMPLES examples of a property (10;
`.ci/full examples`: 200) unless it says how many; tests on the CPU and on the GPU; at the end, why tests were skipped, and how
many compared with the original Caffe.

A test, or a whole module (`pytestmark = pytest.mark.usefixtures("device")`), that asks for `device` runs in CPU mode, and,
marked `gpu`, in GPU mode where there is a GPU, or the test device (tests/cpu_device/README.md).

Each test begins with the same random generator, and what it sets for the process is put back (support/process_state.py):
tests pass in any order.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none
from threadpoolctl import threadpool_info, threadpool_limits

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # in small products a second thread mostly waits

import drawn_order
import process_state
from loops_in_python import computing

import minicaffe
from minicaffe import kernels
from minicaffe.aliases import is_own
from minicaffe.compiled import jit
from minicaffe.errors import DeviceError

threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")  # pytest-randomly imports NumPy before this file

settings.register_profile(
    "no deadline",
    deadline=None,
    **({} if os.access(os.curdir, os.W_OK) else {"database": None}),  # Hypothesis keeps failures in a folder, and warns without
    max_examples=int(os.environ.get("MINICAFFE_TEST_EXAMPLES") or 10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("no deadline")

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # without bytecode, each process that tests start compiles minicaffe anew
    BYTECODE = tempfile.TemporaryDirectory(prefix="minicaffe-bytecode-")
    os.environ["PYTHONPYCACHEPREFIX"] = BYTECODE.name  # not next to the sources, which the variable forbids

for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "GLOG_minloglevel"):  # they change what is printed
    os.environ.pop(variable, None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell ignores SIGINT for what it starts with "&"
    signal.signal(signal.SIGINT, signal.default_int_handler)


TESTS = Path(__file__).resolve().parent
NOT_ENGINE = ("test_random_nets.py", "test_which_fork.py", "test_zoo_models.py")
"""Modules next to this file that do not test the engine."""


@pytest.fixture(scope="module", autouse=True)
def _numpy_computes(request: pytest.FixtureRequest) -> Iterator[None]:
    """NumPy computes in the tests of the folders, and in their processes, unless a test asks for compiled loops.

    To compile a loop takes a second for each type of numbers. Tests of the engine, which are beside this file, compute as
    users do, as do those of compiled/, and all tests where MINICAFFE_LOOPS is set.
    """
    is_engine = request.path.parent == TESTS and request.path.name not in NOT_ENGINE
    if is_engine or request.path.parent.name == "compiled" or os.environ.get(jit.VARIABLE):
        yield
        return
    with pytest.MonkeyPatch.context() as patch, kernels.using("numpy"):
        patch.setenv(jit.VARIABLE, "numpy")
        yield


@pytest.fixture
def compiled_loops() -> Iterator[None]:
    """Runs a test with compiled loops."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        yield


@pytest.fixture(params=["numpy", "definitions"])
def definitions_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test twice: as NumPy computes, and as loops do, in Python: of any type of numbers, and of small arrays."""
    if request.param == "definitions":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with computing(request.param):
        yield request.param


@pytest.fixture(params=["numpy", "numba"])
def loops_way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test twice: as NumPy computes, and with the loops compiled, where Numba is installed."""
    if request.param == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using(request.param):
        yield request.param


ROUND_ALIKE = {"SkylakeX", "Cooperlake", "SapphireRapids"}
"""OpenBLAS's kernels that round a number of a product alike, whatever part of the product is computed."""


@pytest.fixture
def products_round_alike() -> None:
    """Skips a test where BLAS rounds a number otherwise if the product is cut into other parts."""
    kernels = {library.get("architecture") for library in threadpool_info() if library["user_api"] == "blas"}
    if not kernels <= ROUND_ALIKE:
        pytest.skip(f"OpenBLAS's kernels for {', '.join(map(str, kernels - ROUND_ALIKE))} round by the sizes of products")


@pytest.fixture(autouse=True)
def _process_as_before() -> Iterator[None]:
    """No test depends on another: what it registers, allows or sets for the process ends with it."""
    before = process_state.read()
    yield
    process_state.put_back(before)


def _no_gpu() -> str:
    """Why no test can run in GPU mode, or ""."""
    from minicaffe.cuda.device import current

    try:
        current()
    except DeviceError as error:
        return str(error)
    return ""


NO_GPU = _no_gpu()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        devices = ["cpu"] if NO_GPU else ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
        metafunc.parametrize("device", devices, indirect=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, ignore files that have neither the fixture nor the mark, which saves seconds of collection."""
    if config.option.markexpr.startswith("gpu") and collection_path.suffix == ".py":
        return None if re.search("device|gpu", collection_path.read_text(encoding="utf-8")) else True
    return None


LEFT_OUT = pytest.StashKey[dict[str, int]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that need a GPU where there is none, and slow ones unless `-m` names them."""
    marks = [*(["gpu"] if NO_GPU else []), *(["slow"] if "slow" not in config.option.markexpr else [])]
    for mark in marks:
        left_out = [item for item in items if item.get_closest_marker(mark)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker(mark)]
        config.stash.setdefault(LEFT_OUT, {})[mark] = len(left_out)


def pytest_collection() -> None:
    """Collection makes next to no garbage: looking for it would take 4 s."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze the collected tests, which live until the end, so that the garbage collector skips them."""
    given(none())(lambda _: None)()  # Hypothesis asks the collector who holds its generator, and must find it unfrozen
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    minicaffe.set_random_seed(0)  # before fixtures of a module, which may draw weights
    if item.get_closest_marker("gpu"):
        drawn_order.draw(item.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """No test may import minicaffe/layers as `layers`, from the repository's root: each class would exist twice."""
    found = sys.modules.get("layers")
    assert found is None or found.__spec__ is None or not is_own(found.__spec__)


@pytest.fixture(scope="session", autouse=True)
def _prototxts_name_files_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let the prototxts that tests write name files in their tmp_path."""
    minicaffe.allow_path(tmp_path_factory.getbasetemp())


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """ "cpu" or "gpu": the mode during the test."""
    name: str = request.param
    if name == "gpu":
        minicaffe.set_mode_gpu()
    yield name
    minicaffe.set_mode_cpu()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    left_out = terminalreporter.config.stash.get(LEFT_OUT, {})
    seed = terminalreporter.config.getoption("randomly_seed", None)
    if seed is not None and any(terminalreporter.stats.get(outcome) for outcome in ("failed", "error")):
        terminalreporter.write_line(f"--randomly-seed={seed} repeats the order of the tests")  # -q leaves the header out
    if NO_GPU:
        more = f", and {left_out['gpu']} tests left out that need it" if left_out.get("gpu") else ""
        terminalreporter.write_line(f"GPU mode was not tested{more}: {NO_GPU}")
    if left_out.get("slow"):
        terminalreporter.write_line(f"{left_out['slow']} slow tests were left out: python -m pytest -m slow")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")
    outcomes = {"passed": "agree", "failed": "differ", "xfailed": "known to differ", "skipped": "skipped"}
    for mark, whose in (("::test_golden", "the original Caffe"), ("test_golden_forks.py::", "its forks")):
        counts = {
            word: sum(mark in report.nodeid for report in terminalreporter.stats.get(outcome, []))
            for outcome, word in outcomes.items()
        }
        said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        if said:
            terminalreporter.write_line(f"golden tests, against what {whose} computed: {said}")
