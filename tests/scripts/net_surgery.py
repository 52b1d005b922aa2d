"""In the style of the notebook on net surgery: inner products made convolutions, for a map of scores over a larger image.

net_surgery.py CLASSIFIER.prototxt WEIGHTS.caffemodel CONVOLUTIONAL.prototxt OUT.caffemodel
"""

import sys

import numpy as np

import caffe

classifier, weights, convolutional, out = sys.argv[1:]

net = caffe.Net(classifier, weights, caffe.TEST)
params = ["fc", "score"]
fc_params = {pr: (net.params[pr][0].data, net.params[pr][1].data) for pr in params}
for fc in params:
    print(
        "{} weights are {} dimensional and biases are {} dimensional".format(fc, fc_params[fc][0].shape, fc_params[fc][1].shape)
    )

net_full_conv = caffe.Net(convolutional, weights, caffe.TEST)
params_full_conv = ["fc-conv", "score-conv"]
conv_params = {pr: (net_full_conv.params[pr][0].data, net_full_conv.params[pr][1].data) for pr in params_full_conv}
for pr, pr_conv in zip(params, params_full_conv):
    conv_params[pr_conv][0].flat = fc_params[pr][0].flat  # flat unrolls the arrays
    conv_params[pr_conv][1][...] = fc_params[pr][1]
net_full_conv.save(out)

image = np.random.RandomState(0).rand(1, 3, 12, 16).astype(np.float32)
scores = net.forward_all(data=image)
same = net_full_conv.forward_all(data=image)
print("the same score:", bool(np.allclose(scores["prob"].ravel(), same["prob"].ravel(), atol=1e-6)))

net_full_conv.blobs["data"].reshape(1, 3, 16, 20)
larger = np.zeros((1, 3, 16, 20), np.float32)
larger[:, :, :12, :16] = image
out = net_full_conv.forward_all(data=larger)
print("map:", out["prob"][0].argmax(axis=0).shape)
print("its first place:", bool(np.allclose(out["prob"][0, :, 0, 0], scores["prob"].ravel(), atol=1e-6)))
