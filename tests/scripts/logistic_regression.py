"""In the style of the notebook on logistic regression: data in HDF5, a solver from get_solver, solve, and the accuracy.

logistic_regression.py FOLDER
"""

import os
import sys

import h5py
import numpy as np

import caffe
from caffe import layers as L
from caffe import params as P

os.chdir(sys.argv[1])
random = np.random.RandomState(0)
X = random.randn(600, 4).astype(np.float32)
y = (X.dot([1.0, -2.0, 0.5, 0.0]) > 0).astype(np.float32)
for name, part in (("train", slice(0, 450)), ("test", slice(450, 600))):
    with h5py.File(name + ".h5", "w") as f:
        f["data"] = X[part]
        f["label"] = y[part]
    with open(name + ".txt", "w") as f:
        f.write(name + ".h5\n")


def logreg(hdf5, batch_size):
    n = caffe.NetSpec()
    n.data, n.label = L.HDF5Data(batch_size=batch_size, source=hdf5, ntop=2)
    n.ip1 = L.InnerProduct(n.data, num_output=2, weight_filler=dict(type="xavier"))
    n.accuracy = L.Accuracy(n.ip1, n.label)
    n.loss = L.SoftmaxWithLoss(n.ip1, n.label)
    return n.to_proto()


for name in ("train", "test"):
    with open("logreg_" + name + ".prototxt", "w") as f:
        f.write(str(logreg(name + ".txt", 10)))

solver_text = """
train_net: "logreg_train.prototxt"
test_net: "logreg_test.prototxt"
test_iter: 15
test_interval: 150
base_lr: 0.1
lr_policy: "step"
gamma: 0.1
stepsize: 200
display: 100
max_iter: 300
momentum: 0.9
weight_decay: 0.0005
snapshot: 300
snapshot_prefix: "logreg"
random_seed: 1
"""
with open("logreg_solver.prototxt", "w") as f:
    f.write(solver_text)

caffe.set_mode_cpu()
solver = caffe.get_solver("logreg_solver.prototxt")
solver.solve()

accuracy = 0
batch_size = solver.test_nets[0].blobs["data"].num
test_iters = int(150 / batch_size)
for i in range(test_iters):
    solver.test_nets[0].forward()
    accuracy += solver.test_nets[0].blobs["accuracy"].data
accuracy /= test_iters
print("Accuracy: {:.3f}".format(float(accuracy)))
