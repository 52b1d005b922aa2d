"""A validation changes no training, measures as evaluate does, keeps the best weights, and goes on from a snapshot."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
from detection_case import using

from minicaffe import TEST, Film, Net, Validation
from minicaffe.data.roidb import add_flipped
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection import load
from minicaffe.detection.evaluation import evaluate
from minicaffe.errors import Error, WeightsError
from minicaffe.formats.prototxt import parse_solver
from minicaffe.tracing.film_frames import frame_files, read_frame, read_head
from minicaffe.training import validation as module
from minicaffe.training.epochs import Epoch
from minicaffe.training.signals import Action
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver
from minicaffe.training.trained_detector import find_test_net, usual_test_names

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
RFCN = SHAPES / "rfcn"
NAMES = ["__background__", "circle", "square", "triangle"]


@pytest.fixture(scope="module")
def settings() -> DetectionSettings:
    chosen = read_settings(SHAPES / "shapes.yml")
    train, test = (dataclasses.replace(part, scales=(64,)) for part in (chosen.train, chosen.test))
    return dataclasses.replace(chosen, train=train, test=test)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: DetectionSettings):
    monkeypatch.chdir(tmp_path)
    with using(settings):
        yield tmp_path


def scenes(count: int, seed: int = 1) -> list[Entry]:
    generator = np.random.default_rng(seed)
    return [
        Entry(
            image=generator.integers(0, 256, (60, 80, 3), np.uint8),
            boxes=np.array([[10, 20, 50, 50], [30 + i, 5, 70, 40]]),
            gt_classes=np.array([1 + i % 3, 2]),
        )
        for i in range(count)
    ]


def make(settings: DetectionSettings, more: str = "") -> SGDSolver:
    text = f"""train_net: "{RFCN}/train.prototxt" base_lr: 0.01 lr_policy: "poly" power: 1 momentum: 0.9 random_seed: 3
      snapshot_prefix: "run" {more}"""
    solver = get_solver(parse_solver(text), settings=settings, folder=RFCN)
    solver.net.layers[0].set_roidb(add_flipped(scenes(2)))
    return solver


def bits(solver: SGDSolver) -> list[bytes]:
    return [*(blob.data.tobytes() for blob in solver.net.learnable_params), *(array.tobytes() for array in solver.history)]


class Scripted:
    """Average precisions in place of measured ones; each is used once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *values: float) -> None:
        self.values = list(values)
        monkeypatch.setattr(module, "evaluate", self)

    def __call__(self, *arguments: object, **options: object) -> object:
        report = evaluate(*arguments, **{**options, "coco": False})  # type: ignore[arg-type]
        value = self.values.pop(0)
        classes = [dataclasses.replace(one, ap=value) for one in report.classes]
        return dataclasses.replace(report, classes=classes)


def test_a_training_is_the_same_with_it_and_its_numbers_are_those_of_the_best_file(settings, folder, caplog):
    caplog.set_level(logging.INFO, "minicaffe.solver")
    alone = make(settings, "max_iter: 5")
    alone.solve()
    solver = make(settings, "max_iter: 5")
    validation = Validation(solver, scenes(3, 7), NAMES, net=RFCN / "test.prototxt", every=2)
    reports = []
    images = []
    validation.on_validated(reports.append)
    validation.on_image(lambda done, total: images.append((done, total)))
    solver.solve()
    assert bits(solver) == bits(alone)
    assert [done.iteration for done in reports] == [2, 4, 5]
    assert images == [(i, 3) for i in (1, 2, 3)] * 3
    assert reports[0].is_best and validation.best == max(done.report.mean_ap for done in reports)
    detector = load(Net(RFCN / "test.prototxt", TEST, settings=settings), "run_best.caffemodel", threshold=0.01)
    found = [detector(entry["image"]) for entry in scenes(3, 7)]
    assert sum(map(len, found)) > 0
    assert evaluate(found, scenes(3, 7), NAMES).mean_ap == validation.best == validation.best_numbers["voc_ap"]
    lines = [record.getMessage() for record in caplog.records]
    assert f"    Test net output #0: voc_ap = {reports[2].report.mean_ap:g}" in lines
    assert lines.count("Iteration 4, Testing net (#0)") == 1


def test_coco_is_measured_where_pycocotools_is_installed(settings):
    pytest.importorskip("pycocotools", reason="the extra minicaffe[coco] is not installed")
    solver = make(settings, "max_iter: 1")
    validation = Validation(solver, scenes(2, 7), NAMES)
    solver.solve()
    assert set(validation.best_numbers) == {"voc_ap", "coco_ap"}


def test_coco_decides_between_equal_values(settings, monkeypatch):
    results = iter([(0.5, 0.2), (0.5, 0.3), (0.5, 0.3), (0.4, 0.9)])

    def measured(*arguments: object, **_: object) -> object:
        report, (voc, coco) = evaluate(*arguments), next(results)  # type: ignore[arg-type]
        return dataclasses.replace(
            report, classes=[dataclasses.replace(one, ap=voc) for one in report.classes], coco={"AP": coco}
        )

    monkeypatch.setattr(module, "evaluate", measured)
    solver = make(settings, "max_iter: 4")
    validation = Validation(solver, scenes(1), NAMES, every=1)
    solver.solve()
    assert validation.best_iteration == 2 and validation.best_numbers == {"voc_ap": 0.5, "coco_ap": 0.3}


def test_the_best_weights_are_kept_and_the_training_stops_without_a_better_one(settings, folder, monkeypatch):
    Scripted(monkeypatch, 0.2, 0.5, 0.5, 0.4, 0.9)
    solver = make(settings, "max_iter: 9 snapshot_after_train: false")
    validation = Validation(solver, scenes(2), NAMES, every=1, patience=2)
    saved = []
    validation.on_validated(lambda done: saved.append((done.is_best, Path("run_best.caffemodel").read_bytes())))
    solver.solve()
    assert solver.iter == 4 and solver.stopped and validation.is_over
    assert (validation.best, validation.best_iteration) == (0.5, 2)
    assert [is_best for is_best, _ in saved] == [True, True, False, False]
    assert saved[0][1] != saved[1][1] == saved[3][1]
    solver.step(3)
    assert solver.iter == 4  # it is over, also for the next call


@pytest.mark.parametrize("at", [2, 3])
def test_a_resumed_training_decides_the_same(settings, folder, monkeypatch, at):
    values = (0.2, 0.6, 0.3, 0.5, 0.1, 0.7)
    rules = "max_iter: 12 snapshot: 1 average_loss: 3"
    Scripted(monkeypatch, *values)
    straight = make(settings, rules)
    whole = Validation(straight, scenes(2), NAMES, every=2, patience=3)
    straight.solve()
    assert straight.iter == 10 and whole.state()["without_better"] == 3
    Scripted(monkeypatch, *values[at // 2 :])
    resumed = make(settings, rules)
    validation = Validation(resumed, scenes(2), NAMES, every=2, patience=3)
    resumed.solve(f"run_iter_{at}.solverstate")
    assert resumed.iter == 10 and resumed.stopped and bits(resumed) == bits(straight)
    assert validation.state() == whole.state()
    Scripted(monkeypatch)
    over = make(settings, rules)
    Validation(over, scenes(2), NAMES, every=2, patience=3)
    over.solve("run_iter_10.solverstate")
    assert over.iter == 10


def test_a_stop_ends_a_validation_and_the_resumed_training_repeats_it(settings, folder):
    solver = make(settings, "max_iter: 4")
    validation = Validation(solver, scenes(3), NAMES, every=2)
    seen = []
    validation.on_image(lambda done, total: seen.append(done))
    solver.set_action_function(lambda: Action.STOP if seen == [1] else Action.NONE)
    solver.solve()
    assert solver.iter == 2 and solver.stopped and seen == [1] and validation.best is None
    again = make(settings, "max_iter: 4")
    validation = Validation(again, scenes(3), NAMES, every=2)
    iterations = []
    validation.on_validated(lambda done: iterations.append(done.iteration))
    again.solve("run_iter_2.solverstate")
    assert iterations == [2, 4]


def test_a_best_value_of_other_images_does_not_count(settings, folder, monkeypatch, caplog):
    Scripted(monkeypatch, 0.75, 0.25)
    solver = make(settings, "max_iter: 1")
    Validation(solver, scenes(2), NAMES)
    solver.solve()
    other = make(settings, "max_iter: 2")
    validation = Validation(other, scenes(3), NAMES)
    other.solve("run_iter_1.solverstate")
    assert (validation.best, validation.best_iteration) == (0.25, 2)
    assert "validated on other images" in caplog.text


def test_a_damaged_state_is_refused(settings, folder):
    solver = make(settings)
    validation = Validation(solver, scenes(2), NAMES)
    state = validation.state()
    for name, value in (("last", -1), ("best", "high"), ("without_better", 0.5), ("best_numbers", [1])):
        with pytest.raises(ValueError, match=name):
            validation.restore({**state, name: value})
    assert validation.state() == state


def test_old_snapshots_are_removed_also_by_a_resumed_training(settings, folder):
    Path("run_iter_77.caffemodel").write_text("of another training")
    solver = make(settings, "max_iter: 5 snapshot: 1")
    Validation(solver, scenes(1), NAMES, every=3)
    solver.keep = 2
    solver.solve()
    left = sorted(path.name for path in folder.iterdir())
    of = [f"run_iter_{i}.{kind}" for i in (4, 5) for kind in ("caffemodel", "solverstate")]
    assert left == ["run_best.caffemodel", *of, "run_iter_77.caffemodel"]
    resumed = make(settings, "max_iter: 7 snapshot: 1")
    resumed.keep = 1
    resumed.solve("run_iter_5.solverstate")
    assert sorted(path.name for path in folder.glob("*.solverstate")) == ["run_iter_7.solverstate"]
    assert Path("run_iter_77.caffemodel").exists() and not Path("run_iter_4.caffemodel").exists()


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_full_disk_at_the_best_weights(settings, folder, monkeypatch, at):
    """The second best weights do not fit: the first stay, and the resumed training ends like an uninterrupted one."""
    values = (0.25, 0.5, 0.75)
    Scripted(monkeypatch, *values)
    whole = make(settings, "max_iter: 6")
    Validation(whole, scenes(2), NAMES, every=2)
    whole.solve()
    wanted = Path("run_best.caffemodel").read_bytes()
    for path in folder.iterdir():
        path.unlink()

    Scripted(monkeypatch, *values)
    solver = make(settings, "max_iter: 6")
    seen = []
    validation = Validation(solver, scenes(2), NAMES, every=2)
    validation.on_validated(lambda done: seen.append(Path("run_best.caffemodel").read_bytes()))
    holder = {"fsync": os, "replace": Path}[at]
    original, failed = getattr(holder, at), []

    def full(file: int | Path, *more: object) -> object:
        if solver.iter == 4 and not failed:
            failed.append(file)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(file, *more)

    with monkeypatch.context() as disk:
        disk.setattr(holder, at, full)
        message = r"^run_best.caffemodel: cannot be written: No space left on device\nthe state after 4 iterations is saved"
        with pytest.raises(Error, match=message):
            solver.solve()
    assert Path("run_best.caffemodel").read_bytes() == seen[0] != wanted
    names = {"run_best.caffemodel", "run_iter_4.caffemodel", "run_iter_4.solverstate"}
    assert {path.name for path in folder.iterdir()} == names
    assert (validation.best, validation.best_iteration) == (0.25, 2)

    Scripted(monkeypatch, *values[1:])
    resumed = make(settings, "max_iter: 6")
    validation = Validation(resumed, scenes(2), NAMES, every=2)
    resumed.solve("run_iter_4.solverstate")
    assert bits(resumed) == bits(whole) and Path("run_best.caffemodel").read_bytes() == wanted
    assert (validation.best, validation.best_iteration) == (0.75, 6)


def test_a_film_shows_the_average_precision(settings, folder, monkeypatch):
    Scripted(monkeypatch, 0.25, 0.5, 0.75)
    solver = make(settings, "max_iter: 2 snapshot: 2")
    Validation(solver, scenes(2), NAMES, every=1)
    with Film(solver, "film", every=5):
        solver.solve()
    resumed = make(settings, "max_iter: 3")
    validation = Validation(resumed, scenes(2), NAMES, every=1)
    resumed.restore("run_iter_2.solverstate")
    with Film(resumed, "film", every=5):
        resumed.solve()
    assert validation.best == 0.75
    tests = [test for file in frame_files("film").values() for test in read_frame(file).tests]
    assert [(test.iteration, test.net, test.outputs["voc_ap"]) for test in tests] == [(1, 0, 0.25), (2, 0, 0.5), (3, 0, 0.75)]
    assert read_head(Path("film")).accuracies == ["accuracy", "voc_ap", "coco_ap"]


def test_the_default_interval(settings):
    """An epoch of four images, but as many iterations as there are images to validate."""
    assert Validation(make(settings), scenes(3), NAMES).every == 4
    assert Validation(make(settings), scenes(6), NAMES).every == 6
    assert Validation(make(settings, "iter_size: 2"), scenes(1), NAMES).every == 2


@pytest.mark.parametrize(("epochs", "iterations"), [(1, 5), (3, 13), (12, 50)])
def test_an_epoch(epochs, iterations):
    assert Epoch(images=50, batch=3, iter_size=2, ranks=2).iterations_of(epochs) == iterations


def test_what_cannot_be_validated(settings, folder):
    empty = [Entry(image=np.zeros((9, 9, 3), np.uint8), boxes=np.zeros((0, 4)), gt_classes=np.zeros(0, int))]
    for roidb, count in (([], "0 images to validate have"), (empty, "image to validate has"), (empty * 2, "2 images")):
        with pytest.raises(Error, match=f"^the {count}.* no boxes, so there is no average precision: give annotated images"):
            Validation(make(settings), roidb, NAMES)
    with pytest.raises(Error, match=r"have 3 classes with the background, but cls_prob of .*test.prototxt has 4"):
        Validation(make(settings), scenes(1), NAMES[:3])
    with pytest.raises(Error, match=r'not a test net of the trained one: layer "fc\d?"'):
        Validation(make(settings), scenes(1), NAMES, net=SHAPES / "faster_rcnn" / "test.prototxt")
    with pytest.raises(Error, match="patience must be > 0, got 0"):
        Validation(make(settings), scenes(1), NAMES, patience=0)


def test_the_image_that_fails_is_named(settings, folder):
    solver = make(settings, "max_iter: 1")
    roidb = [*scenes(1), Entry(image="gone.png", width=80, height=60, boxes=np.array([[1, 1, 5, 5]]), gt_classes=np.array([1]))]
    Validation(solver, roidb, NAMES)
    with pytest.raises(Error, match=r"validation after 1 iterations: gone.png: .*\nthe state after 1 iterations is saved"):
        solver.solve()


def test_the_test_net_is_found(settings, folder):
    solver = make(settings)
    assert find_test_net(solver) == RFCN / "test.prototxt"
    (folder / "train_agnostic_ohem.prototxt").write_text((RFCN / "train.prototxt").read_text())
    for i, name in enumerate(["deploy.prototxt", "test.prototxt", "test_agnostic.prototxt", "test_agnostic_ohem.prototxt"]):
        (folder / name).write_text((RFCN / "test.prototxt").read_text())
        text = 'train_net: "train_agnostic_ohem.prototxt" base_lr: 0.01 lr_policy: "fixed"'
        solver = get_solver(parse_solver(text), settings=settings)
        expected = ["deploy", "test", "test_agnostic", "test_agnostic_ohem"][i]
        assert find_test_net(solver) == Path(f"{expected}.prototxt")
    for path in folder.glob("test*"):
        path.write_text('layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }')
    assert find_test_net(solver) == Path("deploy.prototxt")
    (folder / "deploy.prototxt").unlink()
    with pytest.raises(Error, match=r"train_agnostic_ohem.prototxt: found no test net .*test_agnostic.prototxt, .* in \."):
        find_test_net(solver)


def test_names_of_test_nets():
    assert usual_test_names("ssd_train.prototxt")[:2] == ["ssd_test.prototxt", "ssd_deploy.prototxt"]
    assert usual_test_names("train_val.prototxt")[:2] == ["test.prototxt", "test_val.prototxt"]
    assert "train.prototxt" not in usual_test_names("train.prototxt")


def test_a_state_of_another_kind_is_refused_with_its_file(settings, folder, monkeypatch):
    Scripted(monkeypatch, 0.5)
    solver = make(settings, "max_iter: 1")
    Validation(solver, scenes(2), NAMES)
    solver.solve()
    from minicaffe.training.snapshots import read_state, write_state

    state = read_state("run_iter_1.solverstate")
    running = json.loads(state.running)
    running["validation"]["best_iteration"] = "two"
    write_state("run_iter_1.solverstate", dataclasses.replace(state, running=json.dumps(running).encode()))
    other = make(settings)
    Validation(other, scenes(2), NAMES)
    with pytest.raises(WeightsError, match=r'run_iter_1.solverstate: .*"validation.best_iteration" must be a whole number'):
        other.restore("run_iter_1.solverstate")
