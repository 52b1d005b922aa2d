#!/usr/bin/env bash
# The tests with the oldest releases that setup.cfg allows (tests/oldest.txt): tests/oldest.sh FOLDER, in a clone of the
# repository; the folder becomes their virtual environment. Ray and MPI come last: with them more tests run.
set -euo pipefail
folder=$1
run() { "$folder/bin/python" -m pytest -q -p no:cacheprovider "$@"; }

python3 -m venv "$folder"
"$folder/bin/pip" -q install -c tests/oldest.txt -e ".[hdf5,lmdb,leveldb,onnx,parquet,resize]" "pytest==8.*" "hypothesis==6.*"
run
"$folder/bin/pip" -q install -c tests/oldest.txt -e ".[mpi,ray]" psutil
run tests/test_ray.py tests/test_mpi.py tests/test_mpi_[fp]*.py
