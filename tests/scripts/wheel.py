"""In an environment that has the wheel alone: it is whole, and importing it imports none of what is optional or slow."""

import sys

import minicaffe
from minicaffe.layers import CATALOGUE
from minicaffe.proto import caffe_pb2

assert "site-packages" in minicaffe.__file__
assert "ROIPooling" in CATALOGUE and caffe_pb2.NetParameter
for name in ("h5py", "torch", "onnx", "PIL", "yaml", "rich", "click", "pycuda"):
    assert name not in sys.modules, f"import minicaffe imports {name}"
print("wheel:", len(CATALOGUE), "layer types")
