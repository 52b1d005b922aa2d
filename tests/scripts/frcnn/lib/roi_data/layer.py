"""A data layer of the script's own: images with their boxes, one a batch, from a roidb it is handed."""

import caffe
import numpy as np
import yaml
from PIL import Image


class RoIDataLayer(caffe.Layer):
    def _shuffle_roidb_inds(self):
        self._perm = np.random.permutation(np.arange(len(self._roidb)))
        self._cur = 0

    def set_roidb(self, roidb):
        self._roidb = roidb
        self._shuffle_roidb_inds()

    def setup(self, bottom, top):
        layer_params = yaml.load(self.param_str_)
        self._num_classes = layer_params["num_classes"]
        self._name_to_top_map = {"data": 0, "im_info": 1, "gt_boxes": 2}
        top[0].reshape(1, 3, 96, 128)
        top[1].reshape(1, 3)
        top[2].reshape(1, 4)
        assert str(self.phase) == "TRAIN"

    def forward(self, bottom, top):
        if self._cur >= len(self._roidb):
            self._shuffle_roidb_inds()
        entry = self._roidb[self._perm[self._cur]]
        self._cur += 1
        im = np.array(Image.open(entry["image"]), dtype=np.float)[:, :, ::-1] - 120
        boxes = np.hstack([entry["boxes"], entry["gt_classes"][:, np.newaxis]]).astype(np.float32, copy=False)
        blobs = {
            "data": im.transpose(2, 0, 1)[np.newaxis],
            "im_info": np.array([[im.shape[0], im.shape[1], 1.0]]),
            "gt_boxes": boxes,
        }
        for blob_name, blob in blobs.items():
            top_ind = self._name_to_top_map[blob_name]
            top[top_ind].reshape(*(blob.shape))
            top[top_ind].data[...] = blob.astype(np.float32, copy=False)

    def backward(self, top, propagate_down, bottom):
        pass

    def reshape(self, bottom, top):
        pass
