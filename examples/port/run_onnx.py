"""Ask the exported model which way the stripes of pictures run; needs onnxruntime, NumPy and Pillow, and no minicaffe.

python examples/port/run_onnx.py port/net.onnx port/stripes_*.png
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from PIL import Image

ANGLES = (0, 45, 90, 135)


def main(model: str, *pictures: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for name in pictures:
        with Image.open(name) as image:
            data = np.asarray(image.convert("RGB"), np.float32)[:, :, ::-1].transpose(2, 0, 1) - 128
        prob = session.run(["prob"], {"data": data[None]})[0][0]
        print(f"{name}: {ANGLES[prob.argmax()]} degrees ({prob.max():.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
