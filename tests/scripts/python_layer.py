"""A net with a Python layer of the script's own, found beside it, and what pycaffe's drawing does.

python_layer.py OUT.svg
"""

import sys
import tempfile

import caffe
import caffe.draw
import numpy as np
from caffe.proto import caffe_pb2
from google.protobuf import text_format

NET = """
name: 'loss_net' force_backward: true
input: 'data' input_shape { dim: 2 dim: 3 }
layer { type: 'Python' name: 'times' bottom: 'data' top: 'times'
  python_param { module: 'times_layer' layer: 'TimesLayer' param_str: "'factor': 4" } }
layer { type: 'Power' name: 'power' bottom: 'times' top: 'out' power_param { shift: 1 } }
"""

with tempfile.NamedTemporaryFile("w", suffix=".prototxt", delete=False) as f:
    f.write(NET)
net = caffe.Net(f.name, caffe.TRAIN)
print("types:", [layer.type for layer in net.layers])
print("factor:", net.layers[1].factor, "phase:", int(net.layers[1].phase), str(net.layers[1].phase))
x = np.arange(6, dtype=np.float32).reshape(2, 3)
print("forward:", net.forward(data=x)["out"].tolist())
net.blobs["out"].diff[...] = 1
print("backward:", net.backward()["data"].tolist())

param = caffe_pb2.NetParameter()
text_format.Merge(NET, param)
caffe.draw.draw_net_to_file(param, sys.argv[1], rankdir="BT", phase=caffe.TEST)
