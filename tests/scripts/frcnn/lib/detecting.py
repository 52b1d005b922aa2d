"""One image through a Faster R-CNN net."""

import numpy as np


def im_detect(net, im):
    """Scores (R, classes) and boxes (R, 4 classes) of an image (H, W, 3), blue, green, red."""
    blobs = {"data": (im.astype(np.float32) - 120).transpose(2, 0, 1)[np.newaxis], "im_info": None}
    im_blob = blobs["data"]
    blobs["im_info"] = np.array([[im_blob.shape[2], im_blob.shape[3], 1.0]], dtype=np.float32)
    net.blobs["data"].reshape(*(blobs["data"].shape))
    net.blobs["im_info"].reshape(*(blobs["im_info"].shape))
    forward_kwargs = {"data": blobs["data"].astype(np.float32, copy=False)}
    forward_kwargs["im_info"] = blobs["im_info"].astype(np.float32, copy=False)
    blobs_out = net.forward(**forward_kwargs)
    rois = net.blobs["rois"].data.copy()
    boxes = rois[:, 1:5]
    scores = blobs_out["cls_prob"]
    deltas = blobs_out["bbox_pred"]
    assert deltas.shape == (len(boxes), 4 * scores.shape[1])
    return scores.copy(), np.tile(boxes, (1, scores.shape[1])) + 0 * deltas
