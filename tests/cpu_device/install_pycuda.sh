#!/usr/bin/env bash
# Installs PyCUDA for a Python, also where a plain `pip install pycuda` fails: without an NVIDIA driver or without cuRAND's header.
#
# usage: install_pycuda.sh PYTHON
#
# Takes a wheel that fits from $MINICAFFE_PYCUDA_WHEELS (or from shared/gpu/wheels beside the repository); otherwise builds one in
# about 90 s. PyCUDA is linked with the test device's libcuda, which has every symbol of cuda.h; the wheel is the ordinary one all
# the same, and on a computer with a driver it uses the driver's libcuda.so.1. Needs g++ and cuda.h (see build.py).
set -euo pipefail
python=$1
here=$(cd "$(dirname "$0")" && pwd)
wheels=${MINICAFFE_PYCUDA_WHEELS:-$here/../../../shared/gpu/wheels}
version=2026.1

if [ -d "$wheels" ] && "$python" -m pip install --find-links "$wheels" --only-binary=pycuda "pycuda==$version" numpy; then
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find_headers() { "$python" -c "import sys; sys.path.insert(0, '$here'); import build; print(build.include_folder())"; }
include=$(find_headers 2>"$work/why") || {
  "$python" -m pip install --no-deps nvidia-cuda-runtime nvidia-cuda-profiler-api  # cuda.h, here and for the test device
  include=$(find_headers)
}
CUDA_ROOT=$(dirname "$include") "$python" "$here/build.py" "$work/stub"
mkdir "$work/home"
cat > "$work/home/.aksetup-defaults.py" <<CFG
CUDA_ROOT = "$(dirname "$include")"
CUDA_INC_DIR = ["$include"]
CUDA_ENABLE_CURAND = False
CUDADRV_LIB_DIR = ["$work/stub"]
CFG
HOME=$work/home "$python" -m pip wheel --no-deps --wheel-dir "$work/wheels" "pycuda==$version"
"$python" -m pip install --find-links "$work/wheels" "pycuda==$version" numpy
