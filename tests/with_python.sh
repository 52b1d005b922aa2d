#!/usr/bin/env bash
# The tests with another Python, in a clone of the repository: tests/with_python.sh 3.12 FOLDER [--oldest [PYTEST ARGUMENTS]]
#
# The folder becomes a virtual environment of that Python, one on PATH or one of pyenv's; status 77: neither has it. There the
# README's second command runs, then the compiled loops for other vectors. With --oldest the tests run on the oldest releases
# that setup.cfg allows (tests/oldest.txt), and again with compiled loops, on Ray and on MPI; with arguments, those tests once.
set -euo pipefail
release=$1 folder=$2 oldest=${3:-}

found=
for python in "python$release" "$(pyenv root 2> /dev/null)/versions/$release".*/bin/python; do
    if "$python" -c "" 2> /dev/null; then found=$python; break; fi
done
[ -n "$found" ] || { echo "Python $release: not here"; exit 77; }
"$found" -m venv "$folder"
# shellcheck disable=SC1091
. "$folder/bin/activate"
python --version
if [ -z "$oldest" ]; then
    bash -euo pipefail -c "$(awk '/^```bash$/ {n++; inside = 1; next} /^```$/ {inside = 0} inside && n == 2' README.md)"
    own=$(python -c "from minicaffe.compiled.jit import registers; print(32 * registers(32).lanes)")
    for width in 128 256 512; do  # bits of a vector: those of other machines; the command above had this processor's
        [ "$width" != "$own" ] || continue
        MINICAFFE_TEST_VECTORS=$width NUMBA_CACHE_DIR="$folder/vectors$width" PYTHONPATH=tests/support python -m pytest -q \
            -p vector_width -p no:cacheprovider tests/compiled/test_tiled.py tests/layers/conv/test_depthwise_convolution.py \
            tests/compiled/test_pooling_loops.py
    done
else
    pip -q install -c tests/oldest.txt -e ".[hdf5,lmdb,leveldb,onnx,parquet,resize,safetensors,tensorboard]" "pytest==8.*" "hypothesis==6.*" pytest-randomly
    if [ $# -gt 3 ]; then exec python -m pytest -q -p no:cacheprovider "${@:4}"; fi
    python -m pytest -q -p no:cacheprovider
    pip -q install -c tests/oldest.txt -e ".[fast,mpi,ray]" psutil
    python -m pytest -q -p no:cacheprovider tests/scaling/test_ray.py tests/scaling/test_mpi.py tests/compiled/test_loops.py tests/layers
fi
