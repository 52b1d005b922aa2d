"""A film: the training is the same with it, a resumed one goes on with it, and a page is made of whatever a run left."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from detection_case import using
from PIL import Image
from training_case import make_training

from minicaffe import TEST, Error, Film, Net, rng
from minicaffe.cli import main
from minicaffe.data.roidb import add_flipped
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection import load
from minicaffe.errors import SolverError
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.tracing.film import filters, write_film
from minicaffe.tracing.film_frames import Frame, Photos, frame_files, read_frame, read_head
from minicaffe.training.record import LOSS, NetTest
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
TESTED = "display: 1 test_iter: 1 test_interval: 3"


def bits(solver: SGDSolver) -> list[bytes]:
    return [*(blob.data.tobytes() for blob in solver.net.learnable_params), *(array.tobytes() for array in solver.history)]


def frames(folder: Path) -> list[Frame]:
    return [read_frame(file) for file in frame_files(folder).values()]


def curve(folder: Path) -> list[tuple[int, float | None]]:
    """Iterations and losses of all frames."""
    return [pair for frame in frames(folder) for pair in zip(frame.iterations, frame.losses.get(LOSS, []), strict=True)]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The solver of a classifier with dropout and shuffled data, in the working directory."""
    pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    monkeypatch.chdir(tmp_path)
    return make_training(tmp_path, "SGD", f"max_iter: 6 snapshot: 3 {TESTED}")


def test_the_accuracies_of_the_trained_net_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A film of a version that named none goes on."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(
        """layer { name: "data" type: "DummyData" top: "data" top: "label"
          dummy_data_param { shape { dim: 4 dim: 2 } shape { dim: 4 } } }
        layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
        layer { name: "hits" type: "Accuracy" bottom: "fc" bottom: "label" top: "top1" }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }"""
    )
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2')
    for _ in range(2):
        solver = get_solver("solver.prototxt")
        with Film(solver, "film", every=1):
            solver.solve()
        assert read_head(Path("film")).accuracies == ["top1"]
        assert set(frames(Path("film"))[1].losses) == {LOSS, "loss", "top1"}
        head = json.loads(Path("film/film.json").read_text())
        del head["accuracies"]
        Path("film/film.json").write_text(json.dumps(head))
        assert read_head(Path("film")).accuracies == []


NET_WITH_TESTS = """layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 4 dim: 2 } shape { dim: 4 } data_filler { value: 1 } data_filler { value: 2 } } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "hits" type: "Accuracy" bottom: "fc" bottom: "label" top: "top1" include { phase: TEST } }
layer { name: "each" type: "Silence" bottom: "fc" include { phase: TRAIN } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" include { phase: TRAIN } }"""


def net_tests(folder: Path) -> list[tuple[int, int, int]]:
    """Of all frames: the frame's iteration, the test's, and the number of the test net."""
    return [(frame.iteration, test.iteration, test.net) for frame in frames(folder) for test in frame.tests]


def test_the_tests_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At their iterations, in the frame of it or the next one; a resumed training repeats none; older films have none."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET_WITH_TESTS)
    lines = 'net: "net.prototxt" base_lr: 0.5 lr_policy: "fixed" max_iter: 6 snapshot: 3 test_interval: 2'
    Path("solver.prototxt").write_text(f"{lines} test_iter: 1 test_iter: 2 test_state {{ }} test_state {{ stage: 'two' }}")
    solver = get_solver("solver.prototxt")
    expected: list[NetTest] = []
    solver.on_test(lambda net, means: expected.append(NetTest(solver.iter, net, {"top1": float(means["top1"])})))
    with Film(solver, "film", every=4):
        solver.solve()
    assert [test.outputs["top1"] for test in expected] == [0, 0, *[1] * 6]
    assert read_head(Path("film")).accuracies == ["top1"]
    assert [test for frame in frames(Path("film")) for test in frame.tests] == expected
    assert net_tests(Path("film")) == [(at, i, net) for at, i in ((0, 0), (4, 2), (4, 4), (6, 6)) for net in (0, 1)]
    for start, count in ((3, 3), (6, 0)):
        again = get_solver("solver.prototxt")
        again.restore(f"solver_iter_{start}.solverstate")
        with Film(again, "film", every=4):
            again.solve()
        assert again.iter == start + count
        assert [test for _, *test in net_tests(Path("film"))] == [[i, net] for i in (0, 2, 4, 6) for net in (0, 1)]
    file = frame_files("film")[0]
    frame = json.loads(file.read_text())
    del frame["tests"]
    file.write_text(json.dumps(frame))
    assert read_frame(file).tests == []


def test_a_classifier_is_trained_alike_with_a_film(small: Path) -> None:
    alone = get_solver(small)
    alone.solve()
    filmed = get_solver(small)
    with Film(filmed, "film", every=4) as film:
        filmed.solve()
    assert bits(filmed) == bits(alone)
    assert film.note == ""
    found = frames(Path("film"))
    assert [frame.iteration for frame in found] == [0, 4, 6]
    assert [at for at, _ in curve(Path("film"))] == [1, 2, 3, 4, 5, 6]
    assert found[1].losses["loss"] == found[1].losses[LOSS]
    assert found[1].lr == pytest.approx(0.05 * (1 - 4 / 6))
    head = read_head(Path("film"))
    assert len(head.photos) == len(found[0].photos) == 5
    scores = [sorted(one.score for one in seen.scores) for seen in found[2].photos]
    assert np.sum(scores, axis=1) == pytest.approx(np.ones(5), abs=1e-3)
    best = [{one.name: one.score for one in frame.photos[0].scores} for frame in found]
    assert set(best[0]) == {"class 0", "class 1", "class 2"}
    assert best[0] != best[1] != best[2]


def test_a_resumed_training_goes_on_with_its_film(small: Path) -> None:
    straight = get_solver(small)
    with Film(straight, "straight", every=2):
        straight.solve()
    first = get_solver(small)
    with Film(first, "film", every=2):
        first.step(5)
    kept = (Path("film") / "frame_000000002.json").read_bytes()
    assert list(frame_files("film")) == [0, 2, 4, 5]
    second = get_solver(small, seed=99)
    second.restore("solver_iter_3.solverstate")
    with Film(second, "film", every=2):
        assert list(frame_files("film")) == [0, 2, 3]
        second.solve()
    assert bits(second) == bits(straight)
    assert list(frame_files("film")) == [0, 2, 3, 4, 6]
    assert (Path("film") / "frame_000000002.json").read_bytes() == kept
    assert curve(Path("film")) == curve(Path("straight"))
    again = get_solver(parse_solver(small.read_text().replace("test_iter: 1 test_interval: 3", "")), folder=small.parent)
    again.iter = 3
    with pytest.raises(Error, match="another net or other photos"), Film(again, "film"):
        pass
    again.iter = 0  # from the start: a new film
    with Film(again, "film") as film:
        pass
    assert "losses and filters alone" in film.note
    assert list(frame_files("film")) == [0]


def test_a_run_that_ends_early_leaves_a_film(small: Path) -> None:
    solver = get_solver(small)

    def stop(progress: Any) -> None:
        if progress.iteration == 5:
            raise KeyboardInterrupt

    solver.on_progress(stop)
    with pytest.raises(KeyboardInterrupt), Film(solver, "film", every=2):
        solver.solve()
    (Path("film") / ".frame_000000006.0a1b.json").write_text('{"form')  # as a killed writer leaves one
    done = CliRunner().invoke(main, ["film", "film", "-o", "page.html"])
    assert (done.exit_code, done.output) == (0, "written: page.html\n")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "@@" not in page
    assert page.count('"lr":') == 3
    with pytest.raises(Error, match="no frames"):
        write_film(small.parent, "other.html")


def test_a_training_that_diverges_is_shown_to_its_end(small: Path) -> None:
    text = small.read_text()
    assert "base_lr: 0.05" in text
    small.write_text(text.replace("base_lr: 0.05", "base_lr: 1e15"))
    with pytest.raises(SolverError, match="the loss is"), Film(solver := get_solver(small), "film"):
        solver.solve()
    assert 0 < solver.iter < 6
    assert list(frame_files("film")) == [0, solver.iter]
    assert [at for at, _ in curve(Path("film"))] == list(range(1, solver.iter + 1))


@pytest.fixture(scope="module")
def settings() -> DetectionSettings:
    chosen = read_settings(SHAPES / "shapes.yml")
    train, test = (dataclasses.replace(part, scales=(96,)) for part in (chosen.train, chosen.test))
    return dataclasses.replace(chosen, train=train, test=test)


def shapes(settings: DetectionSettings) -> SGDSolver:
    generator = np.random.default_rng(1)
    entries = [
        Entry(image=generator.integers(0, 256, (60, 80, 3), np.uint8), boxes=np.array([box]), gt_classes=np.array([kind]))
        for kind, box in ((1, [10, 20, 50, 50]), (2, [30, 5, 70, 40]))
    ]
    solver = get_solver(SHAPES / "rfcn" / "solver.prototxt", settings=settings)
    solver.net.layers[0].set_roidb(add_flipped(entries))
    return solver


@pytest.mark.slow
def test_a_detector_is_trained_alike_and_seen_as_by_its_snapshot(
    device: str, settings: DetectionSettings, tmp_path: Path
) -> None:
    names = ["__background__", "circle", "square", "triangle"]
    test_net = SHAPES / "rfcn" / "test.prototxt"
    with using(settings):
        alone = shapes(settings)
        alone.step(2)
        filmed = shapes(settings)
        with Film(filmed, tmp_path, every=2, net=test_net, classes=names) as film:
            filmed.step(2)
        assert bits(filmed) == bits(alone)
        alone.save(tmp_path / "two.caffemodel")
        detector = load(Net(test_net, TEST, settings=settings), tmp_path / "two.caffemodel", threshold=0.05, max_detections=20)
        entries = alone.net.layers[0].roidb
        expected = [detector(entry["image"]) for entry in entries if not entry["flipped"]]
    head, last = read_head(tmp_path), frames(tmp_path)[-1]
    assert [(photo.name, photo.width, photo.height) for photo in head.photos] == [("image 0", 80, 60), ("image 1", 80, 60)]
    assert Image.open(io.BytesIO(base64.b64decode(head.photos[0].picture))).size == (80, 60)
    for seen, wanted in zip(last.photos, expected, strict=True):
        assert len(seen.detections) == len(wanted) > 0
        np.testing.assert_allclose([one.box for one in seen.detections], wanted.boxes, atol=0.051)
        assert [one.name for one in seen.detections] == [names[k] for k in wanted.classes]
        assert 0 < len(seen.proposals) <= 20
    rois = detector.net.blobs["rois"].data[: len(last.photos[1].proposals), 1:] / detector.net.blobs["im_info"].data[0, 2]
    np.testing.assert_allclose(last.photos[1].proposals, rois, atol=0.051)
    assert last.filters and last.filters.text.startswith("conv1: 16 filters of 3x3; grey is 0, the largest weight ")
    assert film.write().read_text().count('"proposals":[[') == 4  # two frames, two photos


SSD = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } %s }
layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: 4 kernel_size: 8 } }
layer { name: "conf" type: "Convolution" bottom: "data" top: "conf" convolution_param { num_output: 2 kernel_size: 8 } }
layer { name: "prior" type: "PriorBox" bottom: "conf" bottom: "data" top: "prior" prior_box_param { min_size: 4 } }
layer { name: "out" type: "%s }"""


def test_an_ssd_is_shown_photos_as_its_train_net_is(tmp_path: Path) -> None:
    param = parse_solver('base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    transform = "transform_param { mean_value: 120 scale: 0.5 }"
    sums = 'Reduction" bottom: "conf" top: "out" loss_weight: 1'
    param.net_param.CopyFrom(parse_net(SSD % (transform, sums)).param)
    found = 'DetectionOutput" bottom: "loc" bottom: "flat" bottom: "prior" top: "out" detection_output_param { num_classes: 2 }'
    flat = 'layer { name: "flat" type: "Flatten" bottom: "conf" top: "flat" }\nlayer { name: "out"'
    (tmp_path / "test.prototxt").write_text((SSD % ("", found)).replace('layer { name: "out"', flat))
    Image.new("RGB", (40, 20), (121, 122, 130)).save(tmp_path / "photo.png")
    film = Film(get_solver(param), tmp_path / "film", net=tmp_path / "test.prototxt", images=[tmp_path / "photo.png"])
    film.solver.net.params["conf"][1].data[1] = 0.75
    with film:
        pass
    seen = frames(tmp_path / "film")[0].photos[0]
    assert [(one.name, one.score) for one in seen.detections] == [("class 1", 0.75)]
    assert seen.proposals == []
    assert isinstance(film._show, Photos)
    np.testing.assert_array_equal(film._show.net.blobs["data"].data[0, :, 0, 0], [5, 1, 0.5])


def test_nets_that_cannot_be_filmed(settings: DetectionSettings, tmp_path: Path) -> None:
    with using(settings):
        solver = shapes(settings)
    with pytest.raises(Error, match=r'not a test net of the trained one: layer ".*" has blobs'):
        Film(solver, tmp_path, net=SHAPES / "faster_rcnn" / "test.prototxt")
    with pytest.raises(Error, match="a detector's inputs are data and im_info"):
        Film(solver, tmp_path, net=SHAPES / "rfcn" / "train.prototxt")
    solver.net.layers[0].roidb = []
    with pytest.raises(Error, match="needs photos"):
        Film(solver, tmp_path, net=SHAPES / "rfcn" / "test.prototxt")
    with pytest.raises(Error, match="every must be > 0"):
        Film(solver, tmp_path, every=0)
    assert not list(tmp_path.iterdir())


def test_no_random_number_of_the_training_is_drawn_aside() -> None:
    rng.set_random_seed(3)
    expected = rng.generator().random(4)
    rng.set_random_seed(3)
    with rng.aside():
        rng.generator().random(9)
        rng.shared_generator().random(9)
    np.testing.assert_array_equal(rng.generator().random(4), expected)


def picture(inputs: int, size: int) -> tuple[np.ndarray, str]:
    net = Net(
        parse_net(f"""input: "x" input_shape {{ dim: 1 dim: {inputs} dim: 9 dim: 9 }}
layer {{ name: "one" type: "Convolution" bottom: "x" top: "a" convolution_param {{ num_output: 4 kernel_size: 1 }} }}
layer {{ name: "two" type: "Convolution" bottom: "x" top: "b" convolution_param {{ num_output: 2 kernel_size: {size} }} }}"""),
        TEST,
    )
    net.params["two"][0].data.reshape(-1)[1] = -2.5
    found = filters(net)
    if found is None:
        return np.zeros(0), ""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(found.png)))), found.text


def test_the_filters() -> None:
    blue, text = picture(3, 3)
    assert text == "two: 2 filters of 3x3; grey is 0, the largest weight 2.5"
    np.testing.assert_array_equal(blue[0, 1], (128, 128, 0))  # input 0 is blue, and the weight is negative
    np.testing.assert_array_equal(blue[1, 1], (128, 128, 128))
    other, text = picture(2, 3)
    assert text == "two: 4 of 4 filters of 3x3; black is 0, the largest weight 2.5"
    np.testing.assert_array_equal(other[0, 1], (214, 238, 255))
    assert picture(3, 1)[1] == ""


def test_the_commands(small: Path) -> None:
    done = CliRunner().invoke(main, ["train", str(small), "--film", "films/one", "--every", "5"])
    assert done.exit_code == 0, done.output
    assert "written: films/one/film.html" in done.output
    assert list(frame_files("films/one")) == [0, 5, 6]
    for options, said in (
        (["--every", "5"], "go with --film"),
        (["--film", "a", "--film-image", "a.png"], "goes with --film-net"),
        (["--film", str(small)], "is a file"),
        (["--film", "a", "--film-net", "net.prototxt"], "a detector's inputs are"),
    ):
        done = CliRunner().invoke(main, ["train", str(small), *options])
        assert done.exit_code, options
        assert said in done.output


def test_a_name_cannot_write_into_the_page(small: Path) -> None:
    text = Path("net.prototxt").read_text()
    Path("net.prototxt").write_text(text.replace('name: "small"', 'name: "</script><img src=x>@@page.css@@"'))
    with Film(get_solver(small), "film") as film:
        pass
    page = film.write().read_text(encoding="utf-8")
    assert "<img src=x" not in page
    assert page.count("</script>") == 2


BROKEN: dict[str, Callable[[Any], Any]] = {
    "a list": lambda frame: [],
    "an iteration": lambda frame: {**frame, "iteration": -1},
    "a rate": lambda frame: {**frame, "lr": "fast"},
    "losses": lambda frame: {**frame, "losses": {"loss": [1.0]}},
    "infinity": lambda frame: {**frame, "lr": float("inf")},
    "filters": lambda frame: {**frame, "filters": {"text": "a", "png": "x onload=1"}},
    "no picture": lambda frame: {**frame, "filters": {"text": "a", "png": base64.b64encode(b"<svg>").decode()}},
    "a box": lambda frame: {**frame, "photos": [{"proposals": [[1, 2]], "detections": [], "scores": [], "note": ""}]},
    "a name": lambda frame: {**frame, "photos": [{**frame["photos"][0], "scores": [{"name": 3, "score": 1, "box": []}]}]},
    "a test": lambda frame: {**frame, "tests": [{"iteration": 0, "net": "first", "outputs": {}}]},
    "a tested number": lambda frame: {**frame, "tests": [{"iteration": 0, "net": 0, "outputs": {"loss": "small"}}]},
    "no notes": lambda frame: {**frame, "photos": [{"proposals": [], "detections": [], "scores": []}]},
}


def test_broken_frames(small: Path) -> None:
    with Film(get_solver(small), "film"):
        pass
    path = Path("film") / "frame_000000000.json"
    frame = json.loads(path.read_text())
    for kind, change in BROKEN.items():
        path.write_text(json.dumps(change(frame)))
        with pytest.raises(Error, match=r"frame_000000000\.json: this file of a film is broken"):
            write_film("film", "page.html")
        assert not Path("page.html").exists(), kind
    for text, said in (
        ("[" * 10**5, "broken"),
        ("\ud800".encode("utf-8", "surrogatepass"), "broken"),
        ('{"format":2}', "format"),
    ):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(Error, match=said):
            write_film("film", "page.html")
