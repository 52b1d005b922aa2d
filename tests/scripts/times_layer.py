"""A Python layer in pycaffe's protocol, whose param_str is read as py-faster-rcnn's layers read theirs."""

import yaml

import caffe


class TimesLayer(caffe.Layer):
    def setup(self, bottom, top):
        params = yaml.load(self.param_str)
        self.factor = params["factor"]

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.factor * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        if propagate_down[0]:
            bottom[0].diff[...] = self.factor * top[0].diff
