"""In the style of py-faster-rcnn's train_net: a solver wrapped, the roidb handed to its first layer, snapshots with boxes folded."""

import argparse
import json
import os
import sys

import _init_paths  # noqa: F401
import caffe
import google.protobuf as pb2
import numpy as np
from caffe.proto import caffe_pb2


class SolverWrapper(object):
    def __init__(self, solver_prototxt, roidb, output_dir, pretrained_model=None):
        self.output_dir = output_dir
        self.bbox_means, self.bbox_stds = np.zeros(12), np.tile([0.1, 0.1, 0.2, 0.2], 3)
        self.solver = caffe.SGDSolver(solver_prototxt)
        if pretrained_model is not None:
            print("Loading pretrained model weights from {:s}".format(pretrained_model))
            self.solver.net.copy_from(pretrained_model)
        self.solver_param = caffe_pb2.SolverParameter()
        with open(solver_prototxt, "rt") as f:
            pb2.text_format.Merge(f.read(), self.solver_param)
        self.solver.net.layers[0].set_roidb(roidb)

    def snapshot(self):
        """Take a snapshot of the network after unnormalizing the learned bounding-box regression weights."""
        net = self.solver.net
        orig_0 = net.params["bbox_pred"][0].data.copy()
        orig_1 = net.params["bbox_pred"][1].data.copy()
        net.params["bbox_pred"][0].data[...] = net.params["bbox_pred"][0].data * self.bbox_stds[:, np.newaxis]
        net.params["bbox_pred"][1].data[...] = net.params["bbox_pred"][1].data * self.bbox_stds + self.bbox_means
        filename = self.solver_param.snapshot_prefix + "_iter_{:d}".format(self.solver.iter) + ".caffemodel"
        filename = os.path.join(self.output_dir, filename)
        net.save(str(filename))
        print("Wrote snapshot to: {:s}".format(filename))
        net.params["bbox_pred"][0].data[...] = orig_0
        net.params["bbox_pred"][1].data[...] = orig_1
        return filename

    def train_model(self, max_iters):
        last_snapshot_iter = -1
        model_paths = []
        while self.solver.iter < max_iters:
            self.solver.step(1)
            if self.solver.iter % (10 * self.solver_param.display) == 0:
                print("speed")
            if self.solver.iter % 2 == 0:
                last_snapshot_iter = self.solver.iter
                model_paths.append(self.snapshot())
        if last_snapshot_iter != self.solver.iter:
            model_paths.append(self.snapshot())
        return model_paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a Fast R-CNN network")
    parser.add_argument("--solver", default=None, type=str)
    parser.add_argument("--iters", dest="max_iters", default=40000, type=int)
    parser.add_argument("--weights", dest="pretrained_model", default=None, type=str)
    parser.add_argument("roidb")
    args = parser.parse_args()
    print("Called with args:", sorted(vars(args)))
    np.random.seed(3)
    caffe.set_random_seed(3)
    caffe.set_mode_gpu()
    caffe.set_device(0)
    with open(args.roidb) as f:
        roidb = json.load(f)
    for entry in roidb:
        entry["boxes"] = np.array(entry["boxes"], dtype=np.uint16)
        entry["gt_classes"] = np.array(entry["gt_classes"], dtype=np.int32)
        entry["flipped"] = False
    wrapper = SolverWrapper(args.solver, roidb, os.path.dirname(args.roidb), args.pretrained_model)
    paths = wrapper.train_model(args.max_iters)
    losses = [float(wrapper.solver.net.blobs[name].data) for name in ("loss_cls", "loss_bbox", "rpn_cls_loss")]
    print("done solving:", len(paths), "snapshots, losses finite:", bool(np.isfinite(losses).all()))
    sys.exit(0)
