"""scikit-learn's handwritten digits as PNG files and two lists: digits/images/*.png, digits/train.txt, digits/test.txt.

    python examples/digits/prepare.py

1797 images of 8 x 8 pixels, one of five for the test, chosen at random with a fixed seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

FOLDER = Path("digits")


def main(folder: Path = FOLDER) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    (folder / "images").mkdir(parents=True, exist_ok=True)
    names = []
    for i, pixels in enumerate(digits.images):
        names.append(f"{i:04d}.png {digits.target[i]}\n")
        Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(folder / "images" / names[-1].split()[0])
    order = np.random.default_rng(0).permutation(len(names))
    tests = len(names) // 5
    for name, chosen in (("test", order[:tests]), ("train", order[tests:])):
        (folder / f"{name}.txt").write_text("".join(names[i] for i in chosen))
        print(f"{folder / name}.txt: {len(chosen)} images")


if __name__ == "__main__":
    main()
