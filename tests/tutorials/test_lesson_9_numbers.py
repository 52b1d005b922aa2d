"""Lesson 9: the engine has at most 300 lines, its gradients are right, and the numbers that the text states are the net's."""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicaffe
from minicaffe.tracing.trace import statistics
from minicaffe.tutorials import figures, lesson_9

pytest.importorskip("IPython", reason="the extra notebook is not installed")
pytestmark = pytest.mark.filterwarnings("default")

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "9-engine.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
TEXT = " ".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
MOST_LINES = 300


SOLUTION = re.compile(r"### BEGIN SOLUTION\n.*?### END SOLUTION", re.DOTALL)


def code(*wanted: str) -> list[str]:
    """Return the code of the cells, or of those with one of these tags."""
    chosen = [cell for cell in CELLS if cell["cell_type"] == "code"]
    tagged = [cell for cell in chosen if not wanted or set(wanted) & set(cell["metadata"].get("tags", ()))]
    return ["".join(cell["source"]) for cell in tagged]


def run(cells: list[str]) -> tuple[dict[str, Any], str]:
    """Return the names and what is printed. A check that fails raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.chdir(NOTEBOOK.parent)
        for cell in cells:
            exec(cell, names)
    return names, out.getvalue()


@pytest.fixture(scope="module")
def lesson() -> dict[str, Any]:
    """The names after a run of the whole lesson, with its solutions."""
    names, printed = run(code())
    assert printed.count("✓ 9.") == 10
    return names


def test_without_columns_and_nms() -> None:
    """Later checkpoints are right with minicaffe's own."""
    cells = [SOLUTION.sub("return None", cell) if re.match("def (columns|nms)", cell) else cell for cell in code()]
    _, printed = run(cells)
    assert re.findall(r"(9\.\w+): no answer yet", printed) == ["9.columns", "9.nms"]
    assert printed.count("✓ 9.") == 8


def test_the_engines_lines() -> None:
    lines = "\n".join(code("engine", "exercise")).splitlines()
    count = sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)
    assert 200 < count <= MOST_LINES
    assert f"at most {MOST_LINES} lines" in TEXT
    assert f"In the solved notebook they have {count} lines of code." in TEXT


def test_ten_checkpoints() -> None:
    assert re.findall(r"## Checkpoint (\d+):", TEXT) == [str(k) for k in range(1, 11)]
    assert len(code("exercise")) == len(code("check")) == 10


def gradient_cases(names: dict[str, Any]) -> dict[str, tuple[Any, list[np.ndarray]]]:
    """The layers, and bottoms away from corners. Each axis has its own length, and windows overlap."""
    rng = np.random.default_rng(3)
    x = rng.permutation(2 * 3 * 5 * 6).reshape(2, 3, 5, 6) / 40 - 2.01  # no two equal, none 0
    kernel = rng.normal(size=(4, 3, 3, 3))
    rois = np.array([[0, 0, 0, 9, 7], [0, 3, 2, 10, 9], [0, 6, 1, 7, 3]], float)
    scores, labels = rng.normal(size=(5, 3, 2)), rng.integers(0, 3, (5, 2))
    boxes = [rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), np.full((3, 4), 0.5), rng.random((3, 4))]
    return {
        "ReLU": (names["ReLU"](), [x]),
        "Convolution": (names["Convolution"](kernel, rng.normal(size=4), 2, 1), [x]),
        "dilated Convolution": (names["Convolution"](kernel, None, 1, 2, 2), [x]),
        "MaxPool": (names["MaxPool"](3, 2), [x]),
        "BatchNorm": (names["BatchNorm"](), [x]),
        "Scale": (names["Scale"](rng.normal(size=3), rng.normal(size=3)), [x]),
        "Softmax": (names["Softmax"](), [x]),
        "Reshape": (names["Reshape"]([0, 5, -1, 0]), [x]),
        "Average": (names["Average"](), [x]),
        "SoftmaxWithLoss": (names["SoftmaxWithLoss"](), [scores, labels]),
        "SmoothL1Loss": (names["SmoothL1Loss"](1.5), boxes),
        "PSROIPooling": (names["PSROIPooling"](2, 0.5), [rng.normal(size=(1, 12, 5, 6)), rois]),
    }


def test_numerical_gradients(lesson: dict[str, Any]) -> None:
    """Every layer's backward, in its first bottom and its weights, is the slope of its forward."""
    for name, (layer, bottoms) in gradient_cases(lesson).items():
        dy = np.random.default_rng(4).normal(size=np.shape(layer.forward(*bottoms)))
        _, *gradients = lesson["passes"](layer, bottoms, dy)
        arrays = [bottoms[0], *(blob.data for blob in layer.blobs)]
        assert len(gradients) == len(arrays), name
        for gradient, array in zip(gradients, arrays, strict=True):
            wanted = np.zeros(array.shape)
            for index in np.ndindex(array.shape):
                loss = lambda: float((layer.forward(*bottoms) * dy).sum())  # noqa: B023, E731 - called at once
                wanted[index] = lesson["numerical_gradient"](loss, array, index, 1e-5)
            np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-8, err_msg=name)
            assert np.abs(wanted).max() > 1e-3, name


def test_the_scenes_boxes(lesson: dict[str, Any]) -> None:
    start = time.process_time()
    found, rows = lesson["theirs"], lesson["detect"](lesson["image"])
    assert time.process_time() - start < 60  # about 1 s
    assert len(rows) == 8
    np.testing.assert_allclose(rows[:, 2:], found.boxes, atol=1e-2)
    assert rows[:, 0].tolist() == found.classes.tolist()


def test_the_trace_shows_the_learners_numbers(lesson: dict[str, Any]) -> None:
    trace, blobs = lesson["tracer"].trace, lesson["net"].forward(**_inputs(lesson))
    shown = {each.name: each.shot.statistics for step in trace.steps for each in step.blobs}
    for name in ("conv1", "conv8", "rpn_cls_prob", "rois", "psroipooled_cls_rois", "cls_prob", "bbox_pred"):
        mine, page = statistics(blobs[name].data), shown[name]
        assert (page.min, page.mean, page.max) == pytest.approx((mine.min, mine.mean, mine.max), rel=1e-4, abs=1e-5), name
    rows = [row for row in trace.detections if row["score"] > 0.5]
    np.testing.assert_allclose([row["box"] for row in rows], lesson["mine"][:, 2:], atol=0.06)  # rounded to 0.1
    assert len(lesson["tracer"]._repr_html_()) > 3e6
    assert "more than 3 MB" in TEXT


def _inputs(lesson: dict[str, Any]) -> dict[str, np.ndarray]:
    data, im_info = lesson["prepare_image"](lesson["image"], lesson["settings"])
    return {"data": data, "im_info": im_info}


def test_put_in(lesson: dict[str, Any]) -> None:
    """A blob of the traced net holds what the layer put in returns; without an answer, what minicaffe computes."""

    class Answer:
        result: Any = None

        def forward(self, x: np.ndarray) -> Any:
            return self.result

    net = lesson["traced"]
    layer = net.layers[net.index_of("conv1")]
    put, before = Answer(), layer.forward_cpu
    lesson["put_in"](layer, put)
    hook = net.after_forward(lambda i: None)  # with a hook each layer runs by itself
    try:
        plain = net.forward(end="conv1")["conv1"].copy()
        put.result = np.full(plain.shape, 7.0)
        assert (net.forward(end="conv1")["conv1"] == 7).all()
        assert plain.std() > 1
    finally:
        net.remove_hook(hook)
        layer.forward_cpu = before


def test_passes_sees_how_backward_ends(lesson: dict[str, Any]) -> None:
    """A backward that overwrites a diff, one that returns an array, and none."""

    class Wrong(lesson["Convolution"]):  # type: ignore[misc]
        def backward(self, dy: np.ndarray) -> Any:
            gradients = super().backward(dy)
            self.blobs[0].diff[...] -= 1
            return gradients

    x, dy, weight = np.ones((2, 3, 5, 6)), np.ones((2, 4, 3, 4)), np.ones((4, 3, 3, 3))
    right = lesson["passes"](lesson["Convolution"](weight), [x], dy)
    wrong = lesson["passes"](Wrong(weight), [x], dy)
    np.testing.assert_array_equal(wrong[2], right[2] - 1)
    layer = lesson["Convolution"](weight)
    layer.backward = lambda dy: right[1]
    with pytest.raises(TypeError, match="backward must return a list"):
        lesson["passes"](layer, [x], dy)
    layer.backward = lambda dy: None
    assert len(lesson["passes"](layer, [x], dy)) == 1


def test_check_gradient_starts_from_zeros(lesson: dict[str, Any]) -> None:
    class Reversed(lesson["RightlyNormalised"]):  # type: ignore[misc]
        """Adds to its bottom's diff, and overwrites those of its weights."""

        def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
            gradient = self.second.backward(top[0].diff)
            for blob, own in zip(self.blobs, self.second.blobs, strict=True):
                blob.diff[...] = own.diff
            bottom[0].diff[...] += self.through_the_norm(*gradient)

    minicaffe.register("Reversed", Reversed)
    report = minicaffe.check_gradient(lesson["block"].replace("LAYER", "Reversed"), lesson["x"])
    assert report.elements == 30
    assert "It starts from diffs of 0" in TEXT


def test_stated_numbers(lesson: dict[str, Any]) -> None:
    ones = np.ones((1, 1, 7, 7))
    windows = lesson["add_columns"](lesson["columns"](ones, 3, 1, 1) * 0 + 1, ones.shape, 3, 1, 1)[0, 0]
    assert (windows[3, 3], windows[0, 0]) == (9, 4)
    assert "A pixel in the middle lies in nine windows, one in the corner in four." in TEXT
    rows = lesson["MaxPool"](2, 2).forward(np.zeros((1, 1, 5, 8))).shape[2]
    assert (rows, (5 - 2) // 2 + 1) == (3, 2)
    assert "Three rows in Caffe, two otherwise." in TEXT
    far = np.array([[1e3], [-1e3]])
    for sigma in (0.5, 1, 3):
        assert lesson["passes"](lesson["SmoothL1Loss"](sigma), [far, far * 0, 1, 1], 2.0)[1].ravel().tolist() == [1, -1]
    assert "The largest slope is 1" in TEXT
    assert (lesson["x"].size, lesson["report"].elements) == (24, 24 + 3 + 3)
    assert "the 24 elements of x, three scales and three biases" in TEXT
    sizes = {(each["stride"], each["pad"]): each["columns"].shape for each in figures.im2col().data["variants"]}
    assert "There are 3 x 3 = 9 columns" in TEXT
    assert sizes[2, 1] == (9, 9) and np.shape(figures.im2col().data["map"]) == (5, 6)


def test_a_copy_brings_the_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the notebook has examples/shapes beside it."""
    (tmp_path / "examples" / "shapes").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert lesson_9.shapes() == Path("examples/shapes")
