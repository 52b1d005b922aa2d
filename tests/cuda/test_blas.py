"""Matrix products on the GPU: our kernel against NumPy, and what cuBLAS is asked for, by a stand-in that computes it."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import compiled_cublas
import numpy as np
import pytest
from cublas_stand_in import StandIn, installed

import minicaffe
from minicaffe.blob import Blob
from minicaffe.cuda import blas, cublas
from minicaffe.cuda.blas import Matrix, gemm
from minicaffe.cuda.device import current
from minicaffe.cuda.stream import Stream
from minicaffe.errors import DeviceError, install

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1, 1), (5, 3, 0), (0, 3, 2), (4, 0, 2), (1, 9, 70), (70, 1, 3), (3, 65, 17), (66, 130, 33)]
COMBINATIONS = list(itertools.product([False, True], [False, True]))


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """cuBLAS, as blas finds it: the stand-in."""
    return installed(monkeypatch)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """No libcublas."""
    monkeypatch.setattr(cublas, "candidates", lambda stem: iter(()))
    monkeypatch.setattr(blas, "_state", blas._State())


def on_device(values: Any) -> Blob:
    blob = Blob(values.shape, values.dtype)
    blob.data[...] = values
    return blob


def check(sizes: tuple[int, int, int], transposed: tuple[bool, bool], dtype: Any, batch: int = 1, **options: Any) -> None:
    """One product against NumPy's: leading dimensions greater than the rows, a batch whose matrices lie apart."""
    (m, n, k), rng = sizes, np.random.default_rng(sum(sizes))
    shapes = [(k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n), (m, n)]
    pads = (3, 2, 1)
    whole = [rng.normal(size=(batch, rows + 1, columns + pad)).astype(dtype) for (rows, columns), pad in zip(shapes, pads)]
    if not options.get("beta"):
        whole[2][:, :m, :n] = np.nan  # it is not read
    a, b, c = (array[:, :rows, :columns].astype(np.float64) for array, (rows, columns) in zip(whole, shapes))
    a, b = a.swapaxes(1, 2) if transposed[0] else a, b.swapaxes(1, 2) if transposed[1] else b
    expected = options.get("alpha", 1) * (a @ b)
    if options.get("beta"):
        expected += options["beta"] * c
    blobs = [on_device(array) for array in whole]
    where = [blobs[0].device_data("read"), blobs[1].device_data("read"), blobs[2].device_data("update")]
    flags = (*transposed, False)
    matrices = [Matrix(p, w.shape[2], t, w[0].size) for p, w, t in zip(where, whole, flags)]
    gemm(dtype, sizes, *matrices, batch=batch, **options)
    got = blobs[2].data
    np.testing.assert_allclose(got[:, :m, :n], expected, rtol=1e-5, atol=1e-5 if dtype == np.float32 else 1e-12)
    got[:, :m, :n] = whole[2][:, :m, :n]
    np.testing.assert_array_equal(got, whole[2])  # nothing around it


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", COMBINATIONS)
def test_the_kernel(no_library: None, transposed: tuple[bool, bool], dtype: Any) -> None:
    for sizes in SHAPES:
        check(sizes, transposed, dtype)
        check(sizes, transposed, dtype, batch=3, alpha=-0.5, beta=2.0)


def test_long_sums_stay_exact(no_library: None) -> None:
    """100000 numbers one after the other would lose two digits more."""
    x = np.random.default_rng(1).uniform(size=(2, 100000)).astype(np.float32)
    a, c = on_device(x), Blob((2, 2))
    where, to = a.device_data("read"), c.device_data("write")
    gemm(np.float32, (2, 2, 100000), Matrix(where, 100000), Matrix(where, 100000, True), Matrix(to, 2))
    np.testing.assert_allclose(c.data, x.astype(np.float64) @ x.T.astype(np.float64), rtol=1e-5)


@pytest.mark.gpu_barrier
@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_the_kernel_has_no_races(no_library: None, transposed: tuple[bool, bool]) -> None:
    check((66, 3, 17), transposed, np.float32)


def test_a_batch_of_more_matrices_than_a_grid_has_rows(no_library: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "MOST_ROWS", 2)
    check((2, 3, 4), (False, True), np.float32, batch=5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", COMBINATIONS)
def test_what_cublas_is_asked_for(library: StandIn, transposed: tuple[bool, bool], dtype: Any) -> None:
    for sizes in SHAPES:
        check(sizes, transposed, dtype)
        check(sizes, transposed, dtype, batch=3, alpha=-0.5, beta=2.0)
    letter = "s" if dtype == np.float32 else "d"
    assert {name for name, _ in library.calls} == {f"{letter}gemm", f"{letter}gemm_strided_batched"}
    assert blas.backend() == "cuBLAS (stand-in)"


def test_tf32_only_where_allowed(library: StandIn) -> None:
    check((2, 3, 4), (False, False), np.float32)
    default, tf32 = library.Math.DEFAULT_MATH, library.Math.TF32_TENSOR_OP_MATH
    assert [mode for _, mode in library.modes] == [default]
    blas.allow_tf32()
    check((2, 3, 4), (False, False), np.float32)
    check((2, 3, 4), (False, False), np.float32)
    blas.allow_tf32(False)
    check((2, 3, 4), (False, False), np.float32)
    assert [mode for _, mode in library.modes] == [default, tf32, default]


def test_a_handle_for_each_stream(library: StandIn) -> None:
    device = current()
    streams = [Stream(device), Stream(device)]
    handles = [stream.handle.handle for stream in streams]
    for stream in [*streams, streams[0]]:
        with device.running(stream):
            check((2, 3, 4), (False, False), np.float64)
    used = [handle for _, handle in library.calls]
    assert used[0] == used[2] != used[1]
    assert dict(library.streams)[used[0]] == handles[0]
    assert dict(library.streams)[used[1]] == handles[1]
    made = library.made
    del streams, stream
    gc.collect()
    with device.running(Stream(device)):
        check((2, 3, 4), (False, False), np.float64)
    assert library.made == made  # it took over one that was left
    assert library.calls[-1][1] in used
    assert len(library.workspaces) == len(library.streams)
    assert len({address for _, address, _ in library.workspaces[-3:-1]}) == 2  # of two streams that live
    assert {nbytes for *_, nbytes in library.workspaces} == {blas.WORKSPACE}


def test_without_cublas(no_library: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minicaffe"):
        check((2, 3, 4), (False, False), np.float32)
        check((2, 3, 4), (False, False), np.float32)
    assert [record.getMessage() for record in caplog.records] == [
        "matrix products use minicaffe's kernel, which is slower than cuBLAS: "
        f"cuBLAS does not load: libcublas is not installed; {install('gpu-cu13')}"
    ]
    assert blas.backend().startswith("gemm.cu (cuBLAS does not load: libcublas is not installed; ")


def test_a_cublas_that_does_not_load(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def create() -> int:
        raise DeviceError("libcublas.so.13: no such file")

    monkeypatch.setattr(library, "create", create)
    check((2, 3, 4), (False, False), np.float32)
    assert blas.backend().startswith("gemm.cu (cuBLAS does not load: libcublas.so.13: no such file; pip")
    assert not library.calls


def test_what_cublas_refuses(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def sgemm(*arguments: int) -> None:
        raise DeviceError("CUBLAS_STATUS_ALLOC_FAILED")

    monkeypatch.setattr(library, "sgemm", sgemm)
    with pytest.raises(DeviceError, match="cuBLAS, a product of 2 x 4 and 4 x 3: CUBLAS_STATUS_ALLOC_FAILED"):
        check((2, 3, 4), (False, False), np.float32)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_cublas.compiled(tmp_path_factory.mktemp("nvidia"))


@pytest.fixture
def only_the_wheel(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return compiled_cublas.installed(compiled, monkeypatch)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transposed", COMBINATIONS)
def test_cublas_of_a_wheel(only_the_wheel: Path, transposed: tuple[bool, bool], dtype: Any) -> None:
    for sizes in SHAPES:
        check(sizes, transposed, dtype)
        check(sizes, transposed, dtype, batch=3, alpha=-0.5, beta=2.0)
    blas.allow_tf32()
    check((2, 3, 4), transposed, dtype)
    assert blas.backend() == f"cuBLAS ({only_the_wheel})"


def test_what_a_wheels_cublas_refuses(only_the_wheel: Path) -> None:
    with pytest.raises(DeviceError, match="a product of 2 x 4 and 4 x 3: cublasSgemm_v2: an unsupported value"):
        gemm(np.float32, (2, 3, 4), Matrix(0, 4), Matrix(0, 1), Matrix(0, 3))


def test_a_libcublas_that_is_none(only_the_wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = tmp_path / "libcublas.so.13"
    wrong.write_text("no library")
    monkeypatch.setattr(cublas, "candidates", lambda stem: iter([str(wrong)]))
    with pytest.raises(DeviceError, match=f"{wrong}: "):
        cublas.load()
