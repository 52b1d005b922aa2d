"""In the style of py-faster-rcnn's test_net: a net over a list of images, the number of detections of each class."""

import argparse
import os
import sys

import _init_paths  # noqa: F401
import caffe
import numpy as np
from detecting import im_detect
from PIL import Image


def parse_args():
    parser = argparse.ArgumentParser(description="Test a Fast R-CNN network")
    parser.add_argument("--gpu", dest="gpu_id", help="GPU id to use", default=0, type=int)
    parser.add_argument("--def", dest="prototxt", help="prototxt file defining the network", default=None, type=str)
    parser.add_argument("--net", dest="caffemodel", help="model to test", default=None, type=str)
    parser.add_argument("images", nargs="*")
    if len(sys.argv) == 1:
        parser.print_help()
        sys.exit(1)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    caffe.set_mode_gpu()
    caffe.set_device(args.gpu_id)
    net = caffe.Net(args.prototxt, args.caffemodel, caffe.TEST)
    net.name = os.path.splitext(os.path.basename(args.caffemodel))[0]
    all_boxes = [[[] for _ in range(len(args.images))] for _ in range(3)]
    for i, name in enumerate(args.images):
        scores, boxes = im_detect(net, np.array(Image.open(name))[:, :, ::-1])
        for j in range(1, 3):
            inds = np.where(scores[:, j] > 0.2)[0]
            all_boxes[j][i] = boxes[inds, j * 4 : (j + 1) * 4]
        print("im_detect: {:d}/{:d}".format(i + 1, len(args.images)))
    print(net.name, [[len(dets) for dets in of_class] for of_class in all_boxes[1:]])
