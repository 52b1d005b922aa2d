"""MTCNN's three nets in a row with their published weights (../shared/zoo/mtcnn)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from recordings import SHARED, needs

from minicaffe.cli import main
from minicaffe.data.image_bytes import resized
from minicaffe.data.images import load_image
from minicaffe.detection import load
from minicaffe.detection.mtcnn import Stage

MTCNN = SHARED / "zoo" / "mtcnn"
ULTRA = SHARED / "zoo" / "ultraface"

pytestmark = needs(MTCNN)


def boxes_in(photo: Path, *words: str) -> np.ndarray:
    """Return the boxes that detect finds, from left to right."""
    result = CliRunner().invoke(
        main, ["detect", f"{MTCNN}/det1.prototxt", f"{MTCNN}/det1.caffemodel", str(photo), "--json", *words]
    )
    assert result.exit_code == 0, result.output
    (parsed,) = json.loads(result.stdout)
    assert all(one["class"] == "face" and one["score"] > 0.7 for one in parsed["detections"])
    return np.array(sorted(one["box"] for one in parsed["detections"]))


def test_both_faces_and_nothing_else() -> None:
    np.testing.assert_allclose(boxes_in(MTCNN / "test1.jpg"), [[89, 17, 151, 101], [296, 89, 358, 165]], atol=1)
    np.testing.assert_allclose(
        boxes_in(MTCNN / "test1.jpg", "--min-face", "40"), [[90, 19, 150, 101], [296, 87, 360, 169]], atol=5
    )


def test_p_net_sees_what_opencvs_importer_sees() -> None:
    """At the scale 0.3016, which the pyramid of faces >= 20 has: 54 cells > 0.6, of an image resized bilinearly."""
    net = load(MTCNN / "det1.prototxt", MTCNN / "det1.caffemodel").net
    pnet = Stage(net, "pnet", (127.5,) * 3, 0.0078125)
    scores, moves = pnet.run(resized(load_image(MTCNN / "test1.jpg"), 103, 136)[None])
    assert scores.shape == (1, 63, 47) and moves.shape == (1, 4, 63, 47)
    assert (scores > 0.6).sum() == 54


@pytest.mark.slow
@pytest.mark.parametrize(("photo", "faces"), [(10, 19), (11, 26), (12, 5)])
def test_the_faces_of_other_photos(photo: int, faces: int) -> None:
    """It finds every face that a person counts."""
    assert len(boxes_in(ULTRA / f"{photo}.jpg")) == faces
