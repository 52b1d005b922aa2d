"""train-alternating: the same bits as four trainings by hand, after any interruption too, and what it refuses."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner, Result
from first import first
from small_alternating import NETS, SOLVERS, make_small_alternating

import minicaffe
from minicaffe.cli import main
from minicaffe.detection import Detections, proposal_settings, proposals, write_proposals
from minicaffe.formats.weights import read_weights
from minicaffe.roidb import load_roidb
from minicaffe.settings import read_settings
from minicaffe.training import validation
from minicaffe.training.solver import SGDSolver

FOLDER, CFG, ZF = "faster_rcnn_alt_opt", "faster_rcnn_alt_opt.yml", "ZF.v2.caffemodel"
DATA = ("--roidb", "roidb.json", "--cfg", CFG)
START = ("train-alternating", FOLDER, *DATA, "--weights", ZF)
LENGTHS = dict(zip(NETS, (5, 3, 4, 2), strict=True))
LENGTH = ("--iterations", ",".join(map(str, LENGTHS.values())))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def results(out: str) -> dict[str, bytes]:
    """Return the weights and proposals in a folder."""
    files = (*Path(out).glob("*.caffemodel"), *Path(out).glob("*/*.npy"))
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a small alternating training, and its results in whole."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_small_alternating()
        result = run(*START, *LENGTH, "--out", "whole")
    assert result.exit_code == 0, result.output
    assert not list(folder.glob("whole/*.solverstate"))
    (folder / "said").write_text(result.output)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which is the working directory."""
    shutil.copytree(made, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def test_the_same_bits_as_four_trainings_by_hand(folder: Path) -> None:
    images, settings = load_roidb("roidb.json")[0], proposal_settings(read_settings(CFG))
    start = dict.fromkeys(NETS, ZF) | {"stage2_rpn": "stage1_fast_rcnn.caffemodel", "stage2_fast_rcnn": "stage2_rpn.caffemodel"}
    for name, length in LENGTHS.items():
        rpn = name.endswith("_rpn")
        given = [] if rpn else ["--proposals", f"{name[:6]}_proposals"]
        words = ["train", f"{FOLDER}/{SOLVERS[name]}", *DATA, "--weights", start[name], "--iterations", length, *given]
        result = run(*words, "--out", f"{name}.caffemodel", "--snapshot-prefix", "by_hand")
        assert result.exit_code == 0, result.output
        assert Path(f"whole/{name}_iter_{length}.caffemodel").read_bytes() == Path(f"{name}.caffemodel").read_bytes()
        if rpn:
            net = minicaffe.Net(f"{FOLDER}/rpn_test.pt", f"{name}.caffemodel", minicaffe.TEST, settings=settings)
            write_proposals(net, images, f"{name[:6]}_proposals")
    for step in ("stage1_proposals", "stage2_proposals"):
        for i in range(2):
            assert Path(step, f"{i}.npy").read_bytes() == Path("whole", step, f"{i}.npy").read_bytes()
    assert Path("whole/final.caffemodel").read_bytes() == Path("stage2_fast_rcnn.caffemodel").read_bytes()


def weights(file: str) -> dict[str, np.ndarray]:
    return {layer.name: layer.blobs[0].array for layer in read_weights(file).layers if layer.blobs}


def test_the_final_weights_hold_both_parts_and_the_next_command_works(folder: Path) -> None:
    detector, rpn, final = (
        weights(f"whole/{name}.caffemodel") for name in ("stage1_fast_rcnn_iter_3", "stage2_rpn_iter_4", "final")
    )
    for name in ("conv", "rpn_cls_score", "rpn_bbox_pred"):
        np.testing.assert_array_equal(final[name], rpn[name])
    np.testing.assert_array_equal(rpn["conv"], detector["conv"])
    assert {"cls_score", "bbox_pred"} <= set(final)
    found = re.search(r"^next: minicaffe (.*)$", Path("said").read_text(), re.MULTILINE)
    assert found and found[1] == f"detect {FOLDER}/faster_rcnn_test.pt whole/final.caffemodel PHOTOS --cfg {CFG}"
    result = run(*found[1].replace("PHOTOS", "0.png").split(), "--threshold", 0)
    assert result.exit_code == 0, result.output


def test_finished_stages_are_not_repeated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = results("whole")
    monkeypatch.setattr(SGDSolver, "step", Mock(side_effect=AssertionError))
    monkeypatch.setattr(proposals, "propose", Mock(side_effect=AssertionError))
    result = run(*START, *LENGTH, "--out", "whole")
    assert result.exit_code == 0, result.output
    assert result.output.count(": finished\n") == 6 and "begins" not in result.output
    assert results("whole") == before


@pytest.mark.parametrize(
    ("stage", "at"), first(2, [("stage2_fast_rcnn", 1), ("stage1_fast_rcnn", 3), ("stage1_rpn", 2), ("stage2_rpn", 1)])
)
def test_a_stage_that_was_stopped_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch, stage: str, at: int) -> None:
    update = SGDSolver.apply_update

    def updated(self: SGDSolver) -> None:
        update(self)
        if Path(self.param.snapshot_prefix).name == stage and self.iter == at:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(SGDSolver, "apply_update", updated)
        result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 130, result.output
    assert result.output.endswith("to go on: run the same command again\n")
    assert [path.name for path in Path("cut").glob(f"{stage}_iter_*.solverstate")] == [f"{stage}_iter_{at}.solverstate"]
    assert "made" not in json.loads(Path("cut/stages.json").read_text())[stage]
    for name in (f".{stage}_iter_9.4f2b.caffemodel", f"{stage}_iter_0.caffemodel"):
        Path("cut", name).touch()  # as a process leaves that is killed; the finished stage has only its weights
    result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 0, result.output
    assert f"going on from cut/{stage}_iter_{at}.solverstate" in result.output
    assert results("cut") == results("whole")


@pytest.mark.parametrize("step", first(1, ["stage1_proposals", "stage2_proposals"]))
def test_proposals_that_were_stopped_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    calls, propose = list[str](), proposals.propose

    def stopped(net: minicaffe.Net, image: np.ndarray) -> np.ndarray:
        if Path("cut", step, "0.npy").exists():
            raise KeyboardInterrupt
        return propose(net, image)

    def counted(net: minicaffe.Net, image: np.ndarray) -> np.ndarray:
        calls.append(str(net.file))
        return propose(net, image)

    monkeypatch.setattr(proposals, "propose", stopped)
    result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 130 and "to go on: run the same command again" in result.output
    monkeypatch.setattr(proposals, "propose", counted)
    result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 0, result.output
    assert len(calls) == (3 if step == "stage1_proposals" else 1)
    assert results("cut") == results("whole")


def test_a_full_disk_while_proposals_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.suffix == ".npy" and self.name.startswith(".1."):
            write(self, data[:9])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 1
    assert "minicaffe: cut/stage1_proposals/1.npy: cannot be written: No space left on device" in result.output
    assert [path.name for path in Path("cut/stage1_proposals").iterdir()] == ["0.npy"]
    result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 0, result.output
    assert results("cut") == results("whole")


def test_an_error_in_a_stage_says_how_to_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SGDSolver, "_iteration", failing := Mock(wraps=None))
        failing.side_effect = minicaffe.Error("the image is gone")
        Path("cut").mkdir()
        result = run(*START, *LENGTH, "--out", "cut")
    assert result.exit_code == 1 and result.output.endswith("minicaffe: the image is gone\n")  # nothing is done yet
    iterate, count = SGDSolver._iteration, iter(range(9))

    def later(self: SGDSolver) -> None:
        if next(count) == 2:
            raise minicaffe.Error("the image is gone")
        iterate(self)

    with monkeypatch.context() as patch:
        patch.setattr(SGDSolver, "_iteration", later)
        result = run(*START, *LENGTH, "--out", "cut")
    assert "the state after 2 iterations is saved; to resume: run the same command again" in result.output
    assert run(*START, *LENGTH, "--out", "cut").exit_code == 0
    assert results("cut") == results("whole")


@pytest.mark.slow
def test_snapshots_at_the_interval_of_the_settings_without_leftovers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(CFG).write_text(Path(CFG).read_text().replace("TRAIN: {", "TRAIN: {SNAPSHOT_ITERS: 2, "))
    written, snapshot = list[str](), SGDSolver.snapshot

    def noted(self: SGDSolver) -> Path:
        written.append(snapshot(self).name)
        return Path(written[-1])

    monkeypatch.setattr(SGDSolver, "snapshot", noted)
    result = run(*START, *LENGTH, "--out", "more")
    assert result.exit_code == 0, result.output
    assert [name for name in written if name.startswith("stage1_rpn")] == [f"stage1_rpn_iter_{i}.caffemodel" for i in (2, 4, 5)]
    assert results("more") == results("whole")


def test_epochs_classes_and_validation(folder: Path) -> None:
    Path("names.txt").write_text("a\nb\nc\n")
    given = ("--classes", "names.txt", "--val", "val.json", "--epochs", 1)
    text = json.loads(Path("roidb.json").read_text()) | {"classes": ["a", "b", "c"]}
    Path("roidb.json").write_text(json.dumps(text))
    result = run(*START, *given, "--out", "own")
    assert result.exit_code == 1 and "val.json: no such file" in result.output and not Path("own").exists()
    shutil.copy("0.png", "val.png")  # without proposals, which the test net does not take
    Path("val.json").write_text(json.dumps({**text, "images": [{**text["images"][0], "image": "val.png"}]}))
    result = run(*START, *given, "--out", "own")
    assert result.exit_code == 0, result.output
    assert result.output.count("--epochs: 1 x 4 images (mirror images included) / (1 a pass x iter_size 1) = 4 iterations") == 2
    assert result.output.count("--epochs: 1 x 4 images (mirror images included) / (2 a pass x iter_size 1) = 2 iterations") == 2
    assert result.output.count("1 image for validation with faster_rcnn_alt_opt/faster_rcnn_test.pt") == 1
    assert "best: own/stage2_fast_rcnn_best.caffemodel (iteration 2: voc_ap" in result.output
    assert [path.name for path in Path("own").glob("*.prototxt")] == ["stage2_fast_rcnn_test.prototxt"]
    command = re.search(r"^next: minicaffe (.*)$", result.output, re.MULTILINE)
    assert command and "own/stage2_fast_rcnn_test.prototxt own/final.caffemodel" in command[1]
    result = run(*command[1].replace("PHOTOS", "0.png").split(), "--threshold", 0)
    assert result.exit_code == 0, result.output
    assert weights("own/final.caffemodel")["cls_score_4"].shape[0] == 4


def test_every_stage_is_augmented(folder: Path) -> None:
    options = (*START, *LENGTH, "--out", "changed")
    result = run(*options, "--augment", "expand=2,crop")
    assert result.exit_code == 0 and result.output.count("\naugmentation: expand 2, crop 0.3\n") == 4, result.output
    plain, changed = results("whole"), results("changed")
    assert plain.keys() == changed.keys() and not any(plain[name] == changed[name] for name in plain)
    result = run(*options)
    assert result.exit_code == 1 and "TRAIN.EXPAND" in result.stderr, result.output


@pytest.mark.slow
def test_patience_ends_the_last_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("--val", "roidb.json", "--val-every", 1, "--patience", 2, "--iterations", "5,3,4,9", "--out", "whole")
    stages = json.loads(Path("whole/stages.json").read_text())
    del stages["stage2_fast_rcnn"]
    for file in Path("whole").glob("stage2_fast*"):
        file.unlink()
    Path("whole/stages.json").write_text(json.dumps(stages))
    nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    monkeypatch.setattr(validation.Validation, "_found", lambda *_: nothing)
    result = run(*START, *given)
    assert result.exit_code == 0, result.output
    made = json.loads(Path("whole/stages.json").read_text())["stage2_fast_rcnn"]["made"]
    assert made["file"] == "stage2_fast_rcnn_iter_3.caffemodel"
    assert run(*START, *given).output.count(": finished\n") == 6


def changed_images() -> None:
    text = json.loads(Path("roidb.json").read_text())
    text["images"][0]["boxes"][0][0] += 1
    Path("roidb.json").write_text(json.dumps(text))


def edited(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (changed_images, (), r"stage 1, RPN, was begun with other images: roidb.json, 2 images \(sha256 \w+\), now roidb"),
        (lambda: edited(CFG, "BG_THRESH_LO: 0.0", "BG_THRESH_LO: 0.05"), (), "with other TRAIN.BG_THRESH_LO: 0.0, now 0.05"),
        (lambda: edited(CFG, "TEST: {", "TEST: {RPN_NMS_THRESH: 0.5, "), (), "1, proposals, .* TEST.RPN_NMS_THRESH: none, now"),
        (lambda: shutil.copy("whole/final.caffemodel", ZF), (), r"other weights: ZF.v2.caffemodel \(sha256 \w+\), now ZF.v2"),
        (lambda: edited(f"{FOLDER}/{SOLVERS['stage2_rpn']}", "0.001", "0.01"), (), "stage 2, RPN, was begun with other solver"),
        (lambda: edited(f"{FOLDER}/stage2_fast_rcnn_train.pt", "kernel_size: 1 ", "kernel_size: 1  "), (), "with other net"),
        (lambda: None, ("--iterations", "5,3,4,1"), "stage 2, Fast R-CNN, was begun with other iterations: 2, now 1"),
        (lambda: None, ("--seed", 0), "stage 1, RPN, was begun with other --seed: none, now 0"),
        (lambda: edited(f"{FOLDER}/rpn_test.pt", "kernel_size: 1 ", "kernel_size: 1  "), (), "1, proposals, .* other net"),
    ],
)  # fmt: skip
def test_other_files_are_no_silent_mix(folder: Path, change: object, options: tuple[object, ...], message: str) -> None:
    change()  # type: ignore[operator]
    before = results("whole")
    result = run(*START, *LENGTH, *options, "--out", "whole")
    assert result.exit_code == 1 and re.search(message, result.output), result.output
    assert "give what it was begun with, or train anew with another --out" in result.output
    assert results("whole") == before


def test_other_names_and_another_interval_of_snapshots_do_not_matter(folder: Path) -> None:
    shutil.move(ZF, "zf.caffemodel")
    edited(CFG, "TRAIN: {", "TRAIN: {SNAPSHOT_ITERS: 7, ")
    result = run("train-alternating", FOLDER, *DATA, "--weights", "zf.caffemodel", *LENGTH, "--out", "whole")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "name", ["stage1_rpn_iter_5.caffemodel", "stage1_proposals/1.npy", "stage2_fast_rcnn_iter_2.caffemodel"]
)
def test_results_of_a_stage_that_are_missing_or_changed(folder: Path, name: str) -> None:
    path = Path("whole", name)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    result = run(*START, *LENGTH, "--out", "whole")
    changed = path if path.suffix == ".caffemodel" else path.parent
    assert result.exit_code == 1 and f"{changed}: changed since stage" in result.output
    path.unlink()
    result = run(*START, *LENGTH, "--out", "whole")
    assert result.exit_code == 1 and f"minicaffe: {path}: no such file" in result.output


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (SOLVERS["stage1_fast_rcnn"], "stage1_fast_rcnn_solver*.pt"),
        *((name, name) for name in ("stage2_rpn_train.pt", "rpn_test.pt", "faster_rcnn_test.pt")),
    ],
)
def test_a_file_that_is_missing_in_the_folder(folder: Path, name: str, shown: str) -> None:
    (Path(FOLDER) / name).unlink()
    result = run(*START, "--out", "new")
    wanted = "give the folder with the four solvers and six prototxts of faster_rcnn_alt_opt"
    assert result.exit_code == 1 and f"minicaffe: {FOLDER}/{shown}: no such file: {wanted}" in result.output
    assert not Path("new").exists()


def test_solvers_that_lead_to_no_net(folder: Path) -> None:
    Path(FOLDER).rename("other")
    words = ("train-alternating", "other", *DATA, "--weights", ZF, "--out", "new")
    result = run(*words)
    net = "train_net models/small/faster_rcnn_alt_opt/stage1_rpn_train.pt: no such file"
    assert result.exit_code == 1 and f"other/{SOLVERS['stage1_rpn']}: {net}" in result.output
    assert result.output.endswith(": call the folder faster_rcnn_alt_opt, or correct train_net\n")
    edited(f"other/{SOLVERS['stage1_rpn']}", "train_net: ", "test_net: ")
    assert f"other/{SOLVERS['stage1_rpn']}: names no net: name it with train_net" in run(*words).output
    shutil.copy(f"other/{SOLVERS['stage1_rpn']}", "other/stage1_rpn_solver_old.pt")
    result = run(*words)
    assert "other: 2 files stage1_rpn_solver*.pt: keep one of stage1_rpn_solver60k80k.pt, stage1_rpn_sol" in result.output


def test_what_is_refused(folder: Path) -> None:
    for options, message in (
        (("--iterations", "3,2,1"), "--iterations 3,2,1: give four numbers above 0, or those of RPN and Fast R-CNN"),
        (("--iterations", "3,0"), "--iterations 3,0: give four numbers above 0, or those of RPN and Fast R-CNN"),
        (("--iterations", "3,0"), "--iterations 3,0: give"),
        (("--iterations", "3,2", "--epochs", 1), "--epochs and --iterations: give one of them"),
        (("--patience", 2), "--patience does nothing without --val"),
        (("--skip-unreadable", "--no-check"), "--skip-unreadable needs the check"),
        (("--out", "roidb.json"), "--out roidb.json: this is a file; give the name of a folder"),
        (("--out", FOLDER), f"{FOLDER}: has other files, such as"),
    ):
        result = run(*START, "--out", "new", *options)
        assert result.exit_code and message in result.output, result.output
    result = run("train-alternating", "faster_rcnn", *DATA, "--weights", ZF, "--out", "new")
    assert "faster_rcnn: no such folder: give the one with the files of faster_rcnn_alt_opt" in result.output
    Path("whole/stages.json").write_text('{"stage1_rpn": {"made_from": 3}}')
    assert "whole/stages.json: damaged: train anew with another --out" in run(*START, "--out", "whole").output
    assert not Path("new").exists()


def test_a_test_net_of_another_rpn(folder: Path) -> None:
    edited(f"{FOLDER}/rpn_test.pt", '"rpn_bbox_pred" type', '"rpn_bbox" type')
    result = run(*START, *LENGTH, "--out", "new")
    assert (
        "rpn_test.pt: not the test net of stage1_rpn: new/stage1_rpn_iter_5.caffemodel lacks the weights of rpn_bbox"
        in result.output
    )


def test_images_whose_proposals_would_have_one_name(folder: Path) -> None:
    Path("more").mkdir()
    shutil.copy("1.png", "more/0.png")
    edited("roidb.json", '"1.png"', '"more/0.png"')
    result = run(*START, *LENGTH, "--out", "new")
    assert "0.png and more/0.png: the proposals of both would be 0.npy: rename one of the images" in result.output
    assert not Path("new").exists()


@pytest.mark.slow
def test_a_folder_outside_of_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    words = ["train-alternating", f"../{FOLDER}", "--roidb", "../roidb.json", "--cfg", f"../{CFG}", "--weights", f"../{ZF}"]
    result = run(*words, *LENGTH, "--out", "../new")
    assert result.exit_code == 0, result.output
    assert results("../new") == results("../whole")
    assert not list(Path().iterdir())
