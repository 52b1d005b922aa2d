"""An image and its best classes as a picture."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.data.drawings import draw_scores


def coloured(picture: np.ndarray, row: int) -> int:
    """How long the bar of a line is, in pixels of a picture (H, 320, 3) whose image is 240 high and whose lines are 28."""
    line = picture[240 + 28 * row + 3]
    return int((line != 255).any(axis=1).sum())


@pytest.mark.parametrize(
    ("scores", "lengths"),
    [((0.75, 0.25, 0), (240, 80, 0)), ((8, 2, -3), (320, 80, 0)), ((0.5,), (160,)), ((-1, -2), (0, 0)), ((), ())],
)
def test_a_bar_is_its_score_of_one_or_of_the_best(scores: tuple[float, ...], lengths: tuple[int, ...]) -> None:
    image = np.random.default_rng(1).integers(0, 256, (240, 320, 3), np.uint8)
    kept = image.copy()
    drawn = np.asarray(draw_scores(image, [(f"class {k}", score) for k, score in enumerate(scores)]))
    assert drawn.shape == (240 + 28 * len(scores), 320, 3)
    np.testing.assert_array_equal(drawn[:240], image[..., ::-1])
    np.testing.assert_array_equal(image, kept)
    assert tuple(coloured(drawn, row) for row in range(len(scores))) == lengths


def test_a_small_image_is_enlarged_whole_and_a_large_one_has_larger_letters() -> None:
    small = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    drawn = np.asarray(draw_scores(small, [("one", 1.0)]))
    assert drawn.shape == (128 + 28, 320, 3)
    np.testing.assert_array_equal(drawn[:128], small[..., ::-1].repeat(64, axis=0).repeat(64, axis=1))
    assert draw_scores(np.zeros((9, 640, 3), np.uint8), [("one", 1.0)]).size == (640, 9 + 40)


def test_any_name_has_one_line() -> None:
    for name in ("a\nb\x1b[31m", "", "long " * 100_000, "日本"):
        assert draw_scores(np.zeros((8, 320, 3), np.uint8), [(name, 0.5)]).size == (320, 8 + 28)
