"""A process of Caffe, for benchmarks/caffe.py: runs the net of a folder, a forward or a step for each line of its input.

No part of minicaffe can be imported here, and Python may be as old as the Caffe.
"""

import sys

import caffe
import numpy as np


def main(folder):
    """given.npz has the blobs that are given; solver.prototxt is there for training alone."""
    caffe.set_mode_cpu()
    try:
        solver = caffe.SGDSolver(folder + "/solver.prototxt") if sys.argv[2] == "step" else None
        net = solver.net if solver else caffe.Net(folder + "/net.prototxt", caffe.TEST)
        net.copy_from(folder + "/net.caffemodel")
        for name, array in np.load(folder + "/given.npz").items():
            net.blobs[name].reshape(*array.shape)
            net.blobs[name].data[...] = array
    except Exception as error:
        print(repr(error), flush=True)
        raise
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "step":
            solver.step(1)
        else:
            net.forward()
        if line.strip() == "outputs":
            np.savez(folder + "/outputs.npz", **{name: net.blobs[name].data for name in net.outputs})
        print("done", flush=True)


main(sys.argv[1])
