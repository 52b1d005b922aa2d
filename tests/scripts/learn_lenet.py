"""In the style of the notebook on learning LeNet: nets from NetSpec, a solver stepped by hand, weights and accuracy looked at.

learn_lenet.py FOLDER, which holds train_lmdb and test_lmdb
"""

import os
import sys

import numpy as np

import caffe
from caffe import layers as L, params as P

os.chdir(sys.argv[1])


def lenet(lmdb, batch_size):
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        batch_size=batch_size, backend=P.Data.LMDB, source=lmdb, transform_param=dict(scale=1.0 / 255), ntop=2
    )
    n.conv1 = L.Convolution(n.data, kernel_size=3, num_output=8, weight_filler=dict(type="xavier"))
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.fc1 = L.InnerProduct(n.pool1, num_output=32, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.fc1, in_place=True)
    n.score = L.InnerProduct(n.relu1, num_output=4, weight_filler=dict(type="xavier"))
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    return n.to_proto()


with open("lenet_train.prototxt", "w") as f:
    f.write(str(lenet("train_lmdb", 16)))
with open("lenet_test.prototxt", "w") as f:
    f.write(str(lenet("test_lmdb", 20)))

from caffe.proto import caffe_pb2

s = caffe_pb2.SolverParameter()
s.random_seed = 0
s.train_net = "lenet_train.prototxt"
s.test_net.append("lenet_test.prototxt")
s.test_interval = 500
s.test_iter.append(2)
s.max_iter = 10000
s.type = "SGD"
s.base_lr = 0.05
s.momentum = 0.9
s.weight_decay = 5e-4
s.lr_policy = "inv"
s.gamma = 0.0001
s.power = 0.75
s.display = 20
s.snapshot_prefix = "lenet"
s.solver_mode = caffe_pb2.SolverParameter.CPU
with open("lenet_solver.prototxt", "w") as f:
    f.write(str(s))

caffe.set_mode_cpu()
solver = None
solver = caffe.SGDSolver("lenet_solver.prototxt")
print([(k, v.data.shape) for k, v in solver.net.blobs.items()])
print([(k, v[0].data.shape) for k, v in solver.net.params.items()])
solver.net.forward()
solver.test_nets[0].forward()
print("train labels:", solver.net.blobs["label"].data[:8].astype(int).tolist())

solver.step(1)
print("updated:", bool(np.abs(solver.net.params["conv1"][0].diff).max() > 0))

niter = 60
test_interval = 20
train_loss = np.zeros(niter)
test_acc = np.zeros(int(np.ceil(niter / test_interval)))
for it in range(niter):
    solver.step(1)
    train_loss[it] = solver.net.blobs["loss"].data
    solver.test_nets[0].forward(start="conv1")
    if it % test_interval == 0:
        correct = 0
        for test_it in range(2):
            solver.test_nets[0].forward()
            correct += sum(solver.test_nets[0].blobs["score"].data.argmax(1) == solver.test_nets[0].blobs["label"].data)
        test_acc[it // test_interval] = correct / 40.0

print("iteration", solver.iter, "lr %.4f" % solver.lr, "loss fell:", bool(train_loss[-10:].mean() < train_loss[0] / 4))
print("accuracy at the end %.2f" % test_acc[-1])
