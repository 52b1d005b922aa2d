"""In the style of the deep visualization toolbox: backward and deconv from a unit in the middle of a net.

deep_vis.py DEPLOY.prototxt WEIGHTS.caffemodel OUT.npz
"""

import sys

import numpy as np

import caffe

deploy, weights, out = sys.argv[1:]

net = caffe.Classifier(deploy, weights, image_dims=(12, 16))
if "deconv_from_layer" in dir(caffe.classifier.Classifier):
    print("caffe version provides all required functions. Good!")

image = np.random.RandomState(0).rand(12, 16, 3).astype(np.float32)
net.forward(data=net.transformer.preprocess("data", image)[np.newaxis])

backprop_layer, backprop_unit = "fc", int(net.blobs["fc"].data[0].argmax())
diffs = net.blobs[backprop_layer].diff * 0
diffs[0][backprop_unit] = net.blobs[backprop_layer].data[0, backprop_unit]

pictures = {}
for back_mode in ("grad", "deconv", "guided"):
    if back_mode == "grad":
        net.backward_from_layer(backprop_layer, diffs, zero_higher=True)
    elif back_mode == "deconv":
        net.deconv_from_layer(backprop_layer, diffs, zero_higher=True)
    else:
        net.deconv_from_layer(backprop_layer, diffs, zero_higher=True, deconv_type="Guided Backprop")
    grad_blob = net.blobs["data"].diff
    pictures[back_mode] = grad_blob[0].transpose((1, 2, 0)).copy()
    print("%s: %s, %d percent of it 0" % (back_mode, grad_blob.shape, 100 * (grad_blob == 0).mean()))

print(
    "they differ:", not np.allclose(pictures["grad"], pictures["deconv"]), not np.allclose(pictures["grad"], pictures["guided"])
)
print("weights' diffs:", sum(np.abs(blob.diff).sum() for layer in net.params for blob in net.params[layer]))
np.savez(out, **pictures)
