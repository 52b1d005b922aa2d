"""The plans that the real libcudnn makes of our graphs for an H100, by its properties alone: no GPU is needed, but the extra
gpu-cudnn, and a libcuda to load, the test device's or the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minicaffe.cuda import cudnn

pytestmark = pytest.mark.gpu

H100 = {
    "deviceName": "NVIDIA H100 80GB HBM3",
    "cudaDeviceId": 0,
    "deviceVer": 900,
    "driverVer": 13000,
    "pciDeviceId": 0,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "multiProcessorCount": 132,
    "smCountOrigin": 0,
    "warpSize": 32,
    "maxGridSize": [2**31 - 1, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "maxCtasPerSM": 32,
    "regsPerBlock": 65536,
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "oversizedSharedMemoryPerBlock": 0,
    "reservedSharedMemoryPerBlock": 1024,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 2619000,
    "memoryBusWidth": 5120,
    "l2CacheSize": 50 << 20,
    "totalGlobalMem": 80 << 30,
}

CUDART = """
extern "C" {  // what cuDNN's front end asks the runtime about the device
int cudaGetDevice(int* device) { return *device = 0; }
int cudaGetLastError() { return 0; }
int cudaRuntimeGetVersion(int* version) { *version = 13000; return 0; }
const char* cudaGetErrorString(int) { return "no error"; }
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 16 ? 132 : 0;  // compute capability 9.0, 132 multiprocessors
  return 0;
}
}
"""

CASES = {  # images, channels, height, width, outputs, kernel, pad, stride, dilation, group
    "VGG16's conv2_1": (1, 64, 300, 500, 128, 3, 1, 1, 1, 1),
    "ResNet's conv1": (1, 3, 600, 1000, 64, 7, 3, 2, 1, 1),
    "R-FCN's res5": (1, 512, 38, 63, 512, 3, 2, 1, 2, 1),
    "AlexNet's conv2": (1, 96, 75, 125, 256, 5, 2, 1, 1, 2),
    "1x1, stride 2": (1, 512, 75, 125, 256, 1, 0, 2, 1, 1),
    "ResNeXt": (2, 128, 38, 63, 128, 3, 1, 1, 1, 32),
    "a wide border": (2, 4, 5, 7, 6, 2, 3, 1, 1, 1),
}

PROGRAM = """
import json, sys
import cudnn as real
from minicaffe.cuda import blas, cudnn

class Frontend:
    def __init__(self, properties): self.properties = properties
    def __getattr__(self, name): return getattr(real, name)
    def create_handle(self): return None
    def pygraph(self, handle, **named): return real.pygraph(device_property=self.properties, **named)

asked, properties, found = *json.load(sys.stdin), {}
cudnn._load_companions = lambda: None
for tf32 in (False, True):
    blas.allow_tf32(tf32)
    stream = cudnn.OfStream(Frontend(real.create_device_properties(json.dumps(properties))))
    for name, shapes in asked.items():
        for kind in ("forward", "data", "weight"):
            plan = stream.plan(kind, cudnn.Convolution(*map(tuple, shapes)))
            engine = plan and plan.graph.get_plan_name_at_index(plan.graph._plan_index)
            found[f"{name}, {kind}, {tf32}"] = plan and (engine, plan.workspace)
json.dump(found, sys.stdout)
"""


def test_every_convolution_has_a_plan(tmp_path: Path) -> None:
    """Deterministic, in float32 by itself; with TF32 allowed it is another one for most."""
    real: Any = pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed", exc_type=ImportError)
    if tuple(map(int, real.__version__.split(".")[:2])) < (1, 32):
        pytest.skip("this version asks the CUDA runtime for more")
    try:
        real.backend_version()
        cudnn._load_companions()
    except Exception as error:
        pytest.skip(f"the extra gpu-cudnn is not installed: {error}")
    runtime = tmp_path / "libcudart.so"
    subprocess.run(["g++", "-x", "c++", "-shared", "-fPIC", "-", "-o", runtime], input=CUDART, text=True, check=True)
    asked = json.dumps([{name: shapes(*case) for name, case in CASES.items()}, H100])
    variables = os.environ | {"CUDNN_FRONTEND_CUDART_LIB_NAME": str(runtime)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, input=asked, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 2 * 3 * len(CASES)
    assert all(found.values()), found
    assert max(workspace for _, workspace in found.values()) <= cudnn.WORKSPACE + 256
    other = [key for key in found if key.endswith("False") and found[key] != found[key.replace("False", "True")]]
    assert len(other) > len(CASES)


def shapes(n: int, c: int, height: int, width: int, m: int, k: int, p: int, s: int, d: int, group: int) -> list[list[int]]:
    out = [(side + 2 * p - (d * (k - 1) + 1)) // s + 1 for side in (height, width)]
    return [[n, c, height, width], [m, c // group, k, k], [n, m, *out], [p, p], [s, s], [d, d]]
