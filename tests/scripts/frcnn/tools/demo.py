"""In the style of py-faster-rcnn's demo: one image, the best boxes of each class."""

import argparse
import os

import _init_paths  # noqa: F401
import caffe
import numpy as np
from detecting import im_detect
from PIL import Image

CLASSES = ("__background__", "square", "disc")


def parse_args():
    parser = argparse.ArgumentParser(description="Faster R-CNN demo")
    parser.add_argument("--gpu", dest="gpu_id", help="GPU device id to use [0]", default=0, type=int)
    parser.add_argument("--cpu", dest="cpu_mode", help="Use CPU mode (overrides --gpu)", action="store_true")
    parser.add_argument("prototxt")
    parser.add_argument("caffemodel")
    parser.add_argument("image")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    if not os.path.isfile(args.caffemodel):
        raise IOError("{:s} not found".format(args.caffemodel))
    if args.cpu_mode:
        caffe.set_mode_cpu()
    else:
        caffe.set_mode_gpu()
        caffe.set_device(args.gpu_id)
    net = caffe.Net(args.prototxt, args.caffemodel, caffe.TEST)
    print("\n\nLoaded network {:s}".format(args.caffemodel))

    im = 128 * np.ones((96, 128, 3), dtype=np.uint8)
    for i in range(2):
        _, _ = im_detect(net, im)  # warm up on a dummy image

    im = np.array(Image.open(args.image))[:, :, ::-1]
    scores, boxes = im_detect(net, im)
    print("Detection took place for {:d} object proposals".format(boxes.shape[0]))
    for cls_ind, cls in enumerate(CLASSES[1:]):
        cls_ind += 1
        cls_boxes = boxes[:, 4 * cls_ind : 4 * (cls_ind + 1)]
        dets = np.hstack((cls_boxes, scores[:, cls_ind][:, np.newaxis])).astype(np.float32)
        print("{:s}: {:d} boxes".format(cls, len(dets)))
