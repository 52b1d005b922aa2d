"""minicaffe doctor: what it finds, and what it advises where something is missing."""

from __future__ import annotations

import ctypes
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from click.testing import CliRunner

from minicaffe.cli import doctor, main
from minicaffe.compiled import jit
from minicaffe.cuda import blas, compilers, cudnn, device, graph
from minicaffe.errors import DeviceError, install


def said() -> dict[str, doctor.Finding]:
    """The findings by what was looked for, after a look at the command's output, which must be the same."""
    findings = list(doctor.examine())
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0, result.output
    assert result.stdout == "".join(f"{finding}\n" for finding in findings)
    return {finding.what: finding for finding in findings}


@pytest.fixture
def no_pycuda(monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def none_of_pycuda(name: str) -> str:
        if name == "pycuda":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", none_of_pycuda)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)


def test_no_pycuda(no_pycuda: None) -> None:
    findings = said()
    assert findings["minicaffe"].good
    assert str(findings["PyCUDA"]).startswith(f"--  PyCUDA: not installed\n      {install('gpu')}")
    assert findings["GPU"].found == f"no GPU: PyCUDA is not installed ({install('gpu')})"
    assert "nets run on the CPU" in findings["GPU"].advice
    assert not {"a kernel", "matrix products", "convolutions"} & set(findings)


@pytest.mark.parametrize(
    ("version", "variable", "good", "found"),
    [
        ("0.0", "off", False, "Numba 0.0 is here, but NUMBA_DISABLE_JIT is set"),
        (None, "", False, "Numba is not installed: NumPy computes all layers"),
        ("0.0", "numpy", False, "Numba 0.0 is here, but MINICAFFE_LOOPS=numpy"),
        ("0.0", "", False, "Numba is installed but cannot be imported"),
        ("0.0", "", True, "Numba 0.0"),
    ],
)
def test_loops(monkeypatch: pytest.MonkeyPatch, version: str | None, variable: str, good: bool, found: str) -> None:
    monkeypatch.setattr(jit, "installed", lambda: version)
    monkeypatch.setattr(jit, "_use", None)
    monkeypatch.setattr(jit, "_problem", "")
    monkeypatch.setattr(jit, "_numba", None)
    numba = ModuleType("numba")
    numba.core = SimpleNamespace(errors=SimpleNamespace(WarningsFixer=type("WarningsFixer", (), {"catch_warnings": None})))
    numba.config = SimpleNamespace(DISABLE_JIT=int(variable == "off"))
    monkeypatch.setitem(sys.modules, "numba", numba if good or variable == "off" else None)
    monkeypatch.setenv(jit.VARIABLE, "" if variable == "off" else variable)
    finding = said()["compiled loops"]
    assert (finding.good, finding.found.partition(" (")[0]) == (good, found)
    assert ("pip install" in finding.advice) == (not good and not variable)


def test_no_driver(monkeypatch: pytest.MonkeyPatch, no_pycuda: None) -> None:
    def none(name: str, *_: object, **__: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.setattr(ctypes, "CDLL", none)
    found = said()["NVIDIA driver"]
    assert not found.good
    assert (found.found, "--gpus all" in found.advice) == ("its library (libcuda) is not on this machine", True)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, no_pycuda: None) -> None:
    monkeypatch.setattr(compilers, "find_nvcc", lambda: None)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    found = said()["kernel compiler"]
    assert not found.good
    assert found.found.startswith("NVRTC is not installed (pip install")
    assert found.found.endswith("; nvcc (the CUDA toolkit) is not found")
    assert found.advice == "install the CUDA toolkit, or " + install("gpu-cu13")
    monkeypatch.setattr(compilers, "nvrtc_version", lambda: "13.5")
    assert str(said()["kernel compiler"]) == "ok  kernel compiler: NVRTC 13.5"
    monkeypatch.setattr(compilers, "find_nvcc", lambda: "/nvcc")
    monkeypatch.setattr(compilers, "nvcc_version", lambda nvcc: "release 13.0")
    assert str(said()["kernel compiler"]) == "ok  kernel compiler: NVRTC 13.5; then /nvcc: release 13.0"


def test_an_nvcc_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_pycuda: None) -> None:
    monkeypatch.setenv("MINICAFFE_NVCC", str(tmp_path / "nvcc"))
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    found = said()["kernel compiler"]
    assert not found.good
    assert f"{tmp_path / 'nvcc'} does not run: " in found.found


@pytest.mark.gpu
def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = said()
    name = device.current().name
    optional = ("matrix products", "convolutions", "compiled loops", "CUDA graphs")
    assert all(finding.good for what, finding in findings.items() if what not in optional)
    assert findings["GPU"].found.startswith(f"0: {name}, compute capability ")
    assert findings["a kernel"].found == f"compiled and run on {name}"
    products = findings["matrix products"]
    assert products.good == blas.backend().startswith("cuBLAS")
    assert products.good or (products.found.startswith("gemm.cu (") and "slower" in products.advice)
    convolutions = findings["convolutions"]
    assert (convolutions.found, convolutions.good) == (cudnn.backend(), cudnn.backend().startswith("cuDNN"))
    graphs = findings["CUDA graphs"]
    assert graphs.good == graph.available() and graphs.found.startswith("cuda.bindings ")
    monkeypatch.setattr(graph._state, "allowed", False)
    assert str(said()["CUDA graphs"]) == (
        "--  CUDA graphs: switched off (MINICAFFE_CUDA_GRAPHS=0, or allow_graphs): each kernel is launched by itself"
    )
    monkeypatch.setattr(cudnn._state, "allowed", False)
    assert str(said()["convolutions"]) == "--  convolutions: im2col (cuDNN is switched off)"


@pytest.mark.gpu
def test_a_kernel_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise DeviceError("cuda/relu.cu does not compile for REAL = float, sm_90")

    monkeypatch.setattr(device, "launch", refuse)
    assert str(said()["a kernel"]) == "--  a kernel: cuda/relu.cu does not compile for REAL = float, sm_90"
    monkeypatch.setattr(device, "launch", lambda *arguments: None)
    found = said()["a kernel"]
    assert "computed [" in found.found
    assert found.advice == "the driver and the compiler may not fit together"
