"""A libcublas for the test device, made by g++: products in the stream's order, as a driver's host functions.

As the real one, it allocates memory at a product if its handle has no workspace, which a capture does not allow. Each product
overwrites the start of the workspace.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from which_device import skip_on_gpu

from minicaffe.cuda import blas

SOURCE = r"""
#include <dlfcn.h>
#include <cstring>
#include <functional>
struct Handle { void* stream; void* workspace; size_t bytes; };
struct Job { std::function<void()> run; };
template <class F> static F driver(const char* name) {
  return (F)dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), name);
}
static void run(void* job) { ((Job*)job)->run(); }
static int send(Handle* h, std::function<void()> work) {
  int capturing = 0;
  driver<int (*)(void*, int*)>("cuStreamIsCapturing")(h->stream, &capturing);
  unsigned long long memory;
  if (!h->workspace && driver<int (*)(unsigned long long*, size_t)>("cuMemAlloc_v2")(&memory, 4096)) return 3;
  // the job is never freed: a graph may run it again
  return driver<int (*)(void*, void (*)(void*), void*)>("cuLaunchHostFunc")(h->stream, run, new Job{work}) ? 14 : 0;
}
template <class T>
static void gemm(int ta, int tb, int m, int n, int k, T alpha, const T* a, int lda, const T* b, int ldb, T beta, T* c,
                 int ldc) {
  for (int j = 0; j < n; j++)
    for (int i = 0; i < m; i++) {
      double sum = 0;
      for (int l = 0; l < k; l++) sum += double(ta ? a[l + i * lda] : a[i + l * lda]) * (tb ? b[j + l * ldb] : b[l + j * ldb]);
      T* to = c + i + j * ldc;
      *to = T(alpha * sum + (beta ? beta * *to : 0));
    }
}
template <class T>
static int products(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda, long long sa,
                    const T* b, int ldb, long long sb, const T* beta, T* c, int ldc, long long sc, int count) {
  if (m < 0 || lda < (ta ? k : m)) return 7;
  T x = *alpha, y = *beta;  // read at once
  Handle kept = *h;
  return send(h, [=] {
    if (kept.workspace) memset(kept.workspace, 0xEE, 64);
    for (int i = 0; i < count; i++) gemm(ta, tb, m, n, k, x, a + i * sa, lda, b + i * sb, ldb, y, c + i * sc, ldc);
  });
}
extern "C" {
int cublasCreate_v2(Handle** handle) { *handle = new Handle{}; return 0; }
int cublasSetStream_v2(Handle* handle, void* stream) { *handle = {stream, nullptr, 0}; return !stream; }
int cublasSetWorkspace_v2(Handle* handle, void* p, size_t n) {
  handle->workspace = p, handle->bytes = n;
  return (size_t)p % 256 ? 7 : 0;
}
int cublasSetMathMode(Handle*, int mode) { return mode == 0 || mode == 3 ? 0 : 7; }
const char* cublasGetStatusString(int status) {
  return status == 7 ? "an unsupported value" : status == 3 ? "resource allocation failed" : "another error";
}
#define BOTH(T, letter)                                                                                                      \
  int cublas##letter##gemm_v2(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a, int lda,           \
                              const T* b, int ldb, const T* beta, T* c, int ldc) {                                           \
    return products(h, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);                                    \
  }                                                                                                                          \
  int cublas##letter##gemmStridedBatched(Handle* h, int ta, int tb, int m, int n, int k, const T* alpha, const T* a,         \
                                         int lda, long long sa, const T* b, int ldb, long long sb, const T* beta, T* c,      \
                                         int ldc, long long sc, int count) {                                                 \
    return products(h, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, count);                             \
  }
BOTH(float, S)
BOTH(double, D)
}
"""


def compiled(folder: Path) -> Path:
    """Return the library, where the wheel nvidia-cublas has its own, in a folder that stands for the package nvidia."""
    path = folder / "cu13" / "lib" / "libcublas.so.13"
    path.parent.mkdir(parents=True)
    command = ["g++", "-std=c++17", "-x", "c++", "-shared", "-fPIC", "-O1", "-", "-o", str(path)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return path


def installed(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let blas find the library. Skips on a GPU, whose memory it cannot read."""
    skip_on_gpu("the compiled stand-in needs a device whose memory is the host's")
    monkeypatch.setattr(blas, "_state", blas._State())
    spec = SimpleNamespace(submodule_search_locations=[str(path.parents[2])])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    return path
