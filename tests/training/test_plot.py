"""The plot of a training, from its record and from a log: which curves, which axes, and what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from training_case import make_training

from minicaffe.data.charts import Chart
from minicaffe.data.drawings import colour
from minicaffe.training import plot
from minicaffe.training.plot import MOST_CURVES, Curve, Facts, Plot, draw, facts_of, facts_of_log, label, running_mean
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solver_log import logged_numbers
from minicaffe.training.solvers import get_solver


def pixels(image: Image.Image, stroke: str) -> np.ndarray:
    """The places (n, 2) of a colour, as x and y."""
    wanted = tuple(int(stroke[i : i + 2], 16) for i in (1, 3, 5))
    return np.argwhere((np.asarray(image) == wanted).all(axis=2))[:, ::-1]


def test_the_running_mean() -> None:
    np.testing.assert_allclose(running_mean(np.array([1.0, 2, 6, 4, 8]), 3), [1, 1.5, 3, 4, 6])
    np.testing.assert_allclose(running_mean(np.array([1.0, 2, 6]), 1), [1, 2, 6])


@pytest.mark.parametrize(("count", "window"), [(3, 1), (124, 1), (125, 5), (249, 5), (250, 10), (700, 20), (12345, 200)])
def test_the_window_of_the_mean(count: int, window: int) -> None:
    assert Curve("a", "loss", np.arange(count), np.ones(count)).window == window
    assert Curve("a", "loss", np.arange(count), np.ones(count), "test").window == 1
    assert Curve(plot.RATE, plot.RATE, np.arange(count), np.ones(count)).window == 1
    assert Curve(plot.SMOOTHED, "loss", np.arange(count), np.ones(count)).window == 1


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SGDSolver:
    pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    monkeypatch.chdir(tmp_path)
    solver = get_solver(make_training(tmp_path, "SGD", "max_iter: 6 display: 1 test_iter: 2 test_interval: 2"))
    assert solver.record
    return solver


def test_the_curves_of_a_record_and_of_its_log_are_equal(trained: SGDSolver, caplog: pytest.LogCaptureFixture) -> None:
    trained.solve()
    lines = [f"I0101 00:00:00.000000  7 solver.cpp:4] {record.getMessage()}" for record in caplog.records]
    Path("run.log").write_text("\n".join(lines))
    found, logged = facts_of(trained.record, "small", 9), facts_of_log(logged_numbers("run.log"), "run.log")
    assert (found.title, found.text[:17]) == ("small", "iteration 6 of 9,")
    expected = [("loss", "loss", ""), ("loss", "loss", "test"), ("learning rate", "learning rate", "")]
    assert [(curve.name, curve.kind, curve.test) for curve in found.curves] == expected
    # In the log, an iteration's loss is that before its update, and the last line is a further pass.
    smoothed = [curve for curve in logged.curves if curve.name == plot.SMOOTHED]
    assert {(curve.name, curve.kind, curve.test) for curve in logged.curves if curve not in smoothed} == set(expected)
    losses, tests = ([one for one in facts.curves if one.name == "loss"] for facts in (found, logged))
    np.testing.assert_array_equal(losses[0].x, tests[1 if tests[0].test else 0].x + 1)
    for one, other in zip(losses, sorted(tests, key=lambda curve: curve.test), strict=True):
        np.testing.assert_allclose(one.y, other.y, rtol=1e-5)


LINE = "I0101 00:{:02d}:00.000000  7 solver.cpp:4] "


def log(*lines: str) -> str:
    return "".join(f"{LINE.format(i)}{line}\n" for i, line in enumerate(lines))


def facts_of_text(tmp_path: Path, *lines: str) -> Facts:
    (tmp_path / "a.log").write_text(log(*lines))
    return facts_of_log(logged_numbers(tmp_path / "a.log"), "a.log")


def test_a_log_of_two_runs(tmp_path: Path) -> None:
    """A resumed training goes back to its snapshot; one from the start replaces all."""
    lines = [
        line for i, x in ((0, 5), (10, 4), (20, 3)) for line in (f"Iteration {i}, loss = {x}", f"Iteration {i}, lr = 0.{x}")
    ]
    again = ["Iteration 10, loss = 2", "Iteration 10, lr = 0.2"]
    resumed = facts_of_text(tmp_path, *lines, *again)
    assert [(curve.name, curve.x.tolist(), curve.y.tolist()) for curve in resumed.curves] == [
        (plot.SMOOTHED, [0, 10], [5, 2]),
        ("learning rate", [0, 10], [0.5, 0.2]),
    ]
    assert resumed.text == "iteration 10, 7 min 0 s"
    anew = facts_of_text(tmp_path, *lines, "Iteration 0 (3 iter/s, 2s/9 iters), loss = 9")
    assert anew.curves[0].x.tolist() == [0]


def test_outputs_of_several_numbers_are_not_drawn(tmp_path: Path) -> None:
    lines = [
        line
        for i in (0, 10, 10)  # two runs
        for line in (
            f"Iteration {i}, Testing net (#0)",
            f"    Test net output #0: of_class = 0.{i}1",
            f"    Test net output #1: of_class = 0.{i}2",
            f"    Test net output #2: mean = 0.{i}3",
        )
    ]
    facts = facts_of_text(tmp_path, *lines)
    assert [(curve.name, curve.x.tolist(), curve.y.tolist()) for curve in facts.curves] == [("mean", [0, 10], [0.03, 0.103])]
    alone = [line for i in (0, 10, 10) for line in (f"Iteration {i}, Testing net (#0)", f"    Test net output #0: a = 0.{i}1")]
    assert [(curve.name, curve.x.tolist()) for curve in facts_of_text(tmp_path, *alone).curves] == [("a", [0, 10])]


def test_the_outputs_of_a_log(tmp_path: Path) -> None:
    """A loss weight tells losses from scores; each test net has curves of its own; the validation is no test net."""
    facts = facts_of_text(
        tmp_path,
        "Iteration 0, Testing net (#0)",
        "    Test net output #0: top1 = 0.25",
        "    Test net output #1: loss = 3 (* 1 = 3 loss)",
        "Iteration 0, Testing net (#1)",
        "    Test net output #0: top1 = 0.5",
        "Iteration 0, Testing net (#2)",
        "    Test net output #0: voc_ap = 0.75",
        "Iteration 0, loss = 7",
        "    Train net output #0: loss = 7 (* 1 = 7 loss)",
        "    Train net output #1: none = nan",
    )
    found = [(curve.name, curve.kind, curve.test, curve.y.tolist()) for curve in facts.curves]
    assert found == [
        ("top1", "score", "test0", [0.25]),
        ("loss", "loss", "test0", [3]),
        ("top1", "score", "test1", [0.5]),
        ("voc_ap", "score", "test2", [0.75]),
        ("loss", "loss", "", [7]),
        ("none", "score", "", []),
    ]
    assert label(facts.curves[2]) == "top1 (test1) 0.5" and label(facts.curves[3]) == "voc_ap 0.75, best 0.75 at 0"


def test_what_is_drawn() -> None:
    x = np.arange(1, 101)
    curves = [Curve("a", "loss", x, 4 / x), Curve("b", "loss", x, 2 / x)]
    curves += [Curve("voc_ap", "score", [25, 50, 75, 100], [0.25, 0.75, 0.5, 0.5], "val")]
    image = draw(Facts("title", "text", curves))
    right = pixels(image, colour(3))[:, 0].max()
    first, second, best = (pixels(image, colour(i)) for i in (1, 2, 3))
    assert len(second) and second[:, 1].min() > first[:, 1].min(), "a smaller loss is lower"
    assert (best[:, 1].min(), best[:, 1].max()) > (first[:, 1].max(), 0), "the scores are a panel below the losses"
    top = int(best[:, 1].min())
    across = round(best[best[:, 1] == top][:, 0].mean())
    assert [image.getpixel((across, top + down))[1] for down in (3, 7)] == [255, int(colour(3)[3:5], 16)], "a ring, and a dot"
    assert right < image.width - 100, "the labels follow"


def test_small_losses_have_a_logarithmic_axis() -> None:
    def drawn(values: Any) -> int:
        return len(pixels(draw(Facts("", "", [Curve("a", "loss", np.arange(40), values)])), "#000000"))

    texts: list[str] = []
    original = plot.Panel.__init__

    def noted(self: Any, chart: Any, box: Any, x: Any, y: Any, title: str, **options: Any) -> None:
        texts.append(title)
        original(self, chart, box, x, y, title, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plot.Panel, "__init__", noted)
        for values in (np.geomspace(5, 0.01, 40), np.linspace(5, 4, 40), np.linspace(5, -1, 40), np.zeros(40)):
            assert drawn(values) > 0
    assert texts == ["loss, log scale", "loss", "loss", "loss"]


@pytest.mark.parametrize("values", [[np.nan], [np.inf, 1], [1e300, 1e-300], [0], [-5, 5], [1e30] * 60, [1e-30, 1e29] * 50])
@pytest.mark.parametrize("kind", ["loss", "score", plot.RATE])
def test_strange_values_are_drawn(kind: str, values: list[float]) -> None:
    image = draw(Facts("x" * 1000, "", [Curve("name\n\x00" * 50, kind, np.arange(len(values)), values)][:1]))
    assert image.width == plot.WIDTH
    assert draw(Facts("nothing", "", [])).width == plot.WIDTH


def test_many_curves_fit() -> None:
    curves = [Curve(f"loss {i}", "loss", [0, 1], [i, i + 1.0]) for i in range(100)]
    assert draw(Facts("", "", curves)).height == plot.TOP + 18 * MOST_CURVES + plot.GAP


def test_the_file_is_drawn_again_and_again(trained: SGDSolver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every INTERVAL seconds, after each test, and at the end, also of a run that fails; always a whole picture."""
    now, times, seen = [0.0], [], []
    monkeypatch.setattr(plot.time, "monotonic", lambda: now[0])
    original = plot.write_plot

    def noted(path: Any, picture: Image.Image) -> None:
        original(path, picture)
        times.append(trained.iter)

    def size() -> tuple[int, int]:
        with Image.open("run.png") as image:
            return image.size

    def step(progress: Any) -> None:
        now[0] += 4
        seen.append(size() if Path("run.png").is_file() else (0, 0))

    monkeypatch.setattr(plot, "write_plot", noted)
    trained.on_progress(step)
    with pytest.raises(KeyboardInterrupt), Plot(trained, "run.png", 100):
        trained.test_nets.clear()
        trained.param.ClearField("test_interval")
        trained.step(7)
        raise KeyboardInterrupt
    assert times == [4, 7, 7]
    assert size() == seen[-1]
    with Plot(trained, "run.png"):
        pass
    assert [path.name for path in Path().glob("*.png")] == ["run.png"]


def test_many_iterations_are_drawn_as_few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plot of 200,000 iterations must not hold up the training: a line has at most two points for each column of pixels."""
    x = np.arange(200_000)
    curves = [Curve(f"loss {i}", "loss", x, np.random.default_rng(i).random(len(x))) for i in range(6)]
    counts, line = [], Chart.line

    def counted(self: Chart, points: Any, *more: Any) -> None:
        counts.append(len(points))
        line(self, points, *more)

    monkeypatch.setattr(Chart, "line", counted)
    draw(Facts("", "", curves))
    assert sum(count > 1000 for count in counts) == 12  # a thin and a bold line for each curve
    assert max(counts) <= 2 * plot.WIDTH
