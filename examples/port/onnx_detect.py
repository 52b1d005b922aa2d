"""Draw the boxes of an exported Faster R-CNN or R-FCN: photo -> model.onnx -> decode -> NMS. Needs onnxruntime, NumPy and
Pillow, and no minicaffe.

python examples/port/onnx_detect.py rfcn.onnx photo.jpg boxes.png circle,square,triangle 300 120
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Array = NDArray[np.float32]


def nms(boxes: Array, overlap: float = 0.3) -> list[int]:
    """The boxes (N, 4), best first, that no better one overlaps by more."""
    kept: list[int] = []
    area = (boxes[:, 2:] - boxes[:, :2] + 1).prod(axis=1)
    for i, box in enumerate(boxes):
        corners = np.minimum(boxes[kept, 2:], box[2:]) - np.maximum(boxes[kept, :2], box[:2]) + 1
        both = corners.clip(0).prod(axis=1)
        if not (both > overlap * (area[i] + area[kept] - both)).any():
            kept.append(i)
    return kept


def main(
    model: str, photo: str, out: str, names: str, short_side: str = "600", mean: str = "102.9801,115.9465,122.7717"
) -> None:
    image = Image.open(photo).convert("RGB")
    scale = int(short_side) * min(1 / min(image.size), 5 / 3 / max(image.size))  # 600, but at most 1000
    small = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    means = np.array(mean.split(","), np.float32)  # of blue, green and red, or one for all
    data = (np.asarray(small, np.float32)[:, :, ::-1] - means).transpose(2, 0, 1)[None]
    info = np.array([[small.height, small.width, scale]], np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    if (takes := {given.name for given in session.get_inputs()}) != {"data", "im_info"}:
        wants = "data and im_info: export it without --with-image and --with-boxes"
        sys.exit(f"{model} takes {', '.join(sorted(takes))}, not {wants}")
    rois, prob, deltas = session.run(["rois", "cls_prob", "bbox_pred"], {"data": data, "im_info": info})
    low, high = rois[:, 1:3] / scale, rois[:, 3:5] / scale
    size = high - low + 1
    draw = ImageDraw.Draw(image)
    for k, name in enumerate(names.split(","), 1):  # 0 is the background
        at = 4 if deltas.shape[1] == 8 else 4 * k  # 8: one box for all classes
        center = low + size / 2 + deltas[:, at : at + 2] * size
        half = np.exp(deltas[:, at + 2 : at + 4]) * size / 2
        boxes = np.hstack([center - half, center + half]).clip(0, [image.width - 1, image.height - 1] * 2)
        order = [i for i in np.argsort(-prob[:, k]) if prob[i, k] > 0.5]
        for i in nms(boxes[order]):
            box, score = boxes[order[i]], prob[order[i], k]
            print(f"{name} {score:.3f} {' '.join(f'{x:.1f}' for x in box)}")
            draw.rectangle(box.tolist(), outline="red", width=2)
            draw.text((float(box[0]) + 3, float(box[1]) + 1), f"{name} {score:.2f}", fill="red")
    image.save(out)


if __name__ == "__main__":
    sys.exit(__doc__) if not 5 <= len(sys.argv) <= 7 else main(*sys.argv[1:])
