"""A model's own generate_anchors.py: the header and the constants of published ones, above functions that do nothing.

Repositories differ in the header and in constants. read_anchors also compares the functions with py-faster-rcnn's; `known`
has these ones taken for them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minicaffe.layers.proposal import anchor_defaults

BODY = '''
    """
    Doc = string.
    """

    whole = np.round({0})  # a comment
    return [whole for i in xrange(9)]

'''
BODIES = {name: BODY.format(number) for number, name in enumerate(anchor_defaults.FORMULAS)}
HEADER = "def generate_anchors(base_size=16, ratios=[0.5, 1, 2],\n                     scales=2**np.arange(3, 6)):"
MAIN = "if __name__ == '__main__':\n    print generate_anchors()\n"


def own_text(header: str = HEADER, constants: str = "") -> str:
    """Return a file of Python 2 with this header."""
    others = "".join(f"def {name}(anchor):{body}" for name, body in BODIES.items() if name != "generate_anchors")
    return f"import numpy as np\n{constants}\n{header}{BODIES['generate_anchors']}{others}{MAIN}"


def write_own(path: Path, header: str = HEADER, constants: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(own_text(header, constants))
    return path


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have read_anchors take these functions for py-faster-rcnn's."""
    text, header = own_text(), HEADER
    digests = {name: anchor_defaults.digest_of(text, header, name) for name in BODIES}
    monkeypatch.setattr(anchor_defaults, "FORMULAS", digests)


SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
SCALES = "[1, 1.6, 2.5, 4, 6.5, 10.5]"


def write_repository(
    folder: Path, header: str = f"def generate_anchors(scales=np.array({SCALES})):"
) -> tuple[Path, Path, Path]:
    """Write the Faster R-CNN of examples/shapes as old repositories have it: its scales are in lib/rpn/generate_anchors.py.

    Returns the net, its weights and that file.
    """
    source, place = SHAPES / "faster_rcnn", folder / "models" / "zf"
    place.mkdir(parents=True)
    given = f"\\n'scales': {SCALES}"
    text = (source / "test.prototxt").read_text()
    assert given in text
    (place / "test.prototxt").write_text(text.replace(given, ""))
    weights = place / "zf.caffemodel"
    weights.write_bytes((source / "shapes_faster_rcnn.caffemodel").read_bytes())
    return place / "test.prototxt", weights, write_own(folder / "lib" / "rpn" / "generate_anchors.py", header)
