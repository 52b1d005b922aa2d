"""The stages of an alternating training beside the original script's, and the record of what they are made from."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden import SHARED

from minicaffe.data.settings import DetectionSettings, TrainSettings, changed_values
from minicaffe.errors import DataError, Error
from minicaffe.formats.prototxt import read_net, read_solver
from minicaffe.training.alternating import (
    RECORDS,
    STAGES,
    Records,
    folder_facts,
    proposals_step,
    roidb_facts,
    stage_files,
    stage_of,
)

MODELS = SHARED / "models" / "py-faster-rcnn" / "pascal_voc"
NETS = ("ZF", "VGG16", "VGG_CNN_M_1024")


def test_the_numbers_of_the_original_script() -> None:
    """Those of py-faster-rcnn's tools/train_faster_rcnn_alt_opt.py, at commit 028dc40."""
    assert [stage.name for stage in STAGES] == ["stage1_rpn", "stage1_fast_rcnn", "stage2_rpn", "stage2_fast_rcnn"]
    assert [stage.iterations for stage in STAGES] == [80000, 40000, 80000, 40000]
    assert [stage.starts_from for stage in STAGES] == ["", "", "stage1_fast_rcnn", "stage2_rpn"]
    assert [stage.proposals for stage in STAGES] == ["", "stage1_rpn", "", "stage2_rpn"]
    given = DetectionSettings(TrainSettings(ims_per_batch=5, bg_thresh_lo=0.0, proposal_method="selective_search"))
    for stage in STAGES:
        infix = stage.name[:6]
        if stage.name.endswith("_rpn"):
            own = {"has_rpn": True, "bbox_reg": False, "proposal_method": "gt", "ims_per_batch": 1, "snapshot_infix": infix}
        else:
            own = {"has_rpn": False, "proposal_method": "rpn", "ims_per_batch": 2, "snapshot_infix": infix}
        assert stage.settings(given) == replace(given, train=replace(given.train, **own))  # type: ignore[arg-type]


@pytest.mark.skipif(not MODELS.exists(), reason="needs ../shared")
@pytest.mark.parametrize("name", NETS)
def test_the_published_folders(name: str) -> None:
    folder = MODELS / name / "faster_rcnn_alt_opt"
    files = stage_files(folder)
    rates = {"rpn": ("60k80k", 60000), "fast_rcnn": ("30k40k", 30000)}
    for stage in STAGES:
        kind = stage.name.partition("_")[2]
        solver = read_solver(files[stage.name].solver)
        assert files[stage.name].solver.name == f"{stage.name}_solver{rates[kind][0]}.pt"
        assert (solver.base_lr, solver.stepsize) == (pytest.approx(0.001), rates[kind][1])
        assert files[stage.name].net.samefile(folder / f"{stage.name}_train.pt")
        tops = list(read_net(files[stage.name].net).param.layer[0].top)
        assert tops[1] == ("rois" if stage.proposals else "im_info")
        assert bool(stage.proposals) == (stage.name.endswith("fast_rcnn"))


def test_names() -> None:
    assert [proposals_step(stage_of(name)) for name in ("stage1_rpn", "stage2_rpn")] == ["stage1_proposals", "stage2_proposals"]


def test_the_settings_that_are_recorded() -> None:
    given = DetectionSettings(TrainSettings(bg_thresh_lo=0.0, snapshot_iters=7), rng_seed=5)
    given = replace(given, test=replace(given.test, nms=0.4))
    assert changed_values(given, unused="TEST") == {"TRAIN.BG_THRESH_LO": 0.0, "RNG_SEED": 5}
    assert changed_values(given, unused="TRAIN") == {"TEST.NMS": 0.4, "RNG_SEED": 5}


def test_the_facts_of_images_depend_on_names_boxes_and_classes() -> None:
    def facts(name: str = "a/0.jpg", corner: int = 1, label: int = 1) -> object:
        box = np.array([[corner, 2, 3, 4]], np.float32)
        return roidb_facts([{"image": name, "boxes": box, "gt_classes": np.array([label])}], "roidb.json")

    assert facts() == facts("b/0.jpg")
    assert len({str(one) for one in (facts(), facts("1.jpg"), facts(corner=0), facts(label=2))}) == 4


def test_the_facts_of_a_folder_depend_on_the_order_and_the_content(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a", "b", "c")]
    for path, text in zip(files, "xyy", strict=True):
        path.write_text(text)
    first = folder_facts(tmp_path, files)
    assert first["file"] == tmp_path.name
    assert first == folder_facts(tmp_path, [files[0], files[2], files[1]])
    assert first != folder_facts(tmp_path, files[::-1])


FACTS = {"iterations": 5, "SCALES": (600, 700), "weights": {"file": "a", "sha256": "12"}}


def test_a_step_is_begun_finished_and_compared(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    records = Records(folder)
    assert not folder.exists()
    assert records.begin("one", "step 1", FACTS, "one_*") is False
    (folder / "one_iter_5").touch()
    records = Records(folder)
    assert records.made("one") is None
    assert records.begin("one", "step 1", {**FACTS, "weights": {"file": "b", "sha256": "12"}}, "one_*") is True
    for other, shown in (
        ({**FACTS, "iterations": 6}, "other iterations: 5, now 6"),
        ({**FACTS, "more": "x"}, 'other more: none, now "x"'),
        ({name: FACTS[name] for name in ("iterations", "SCALES")}, r"other weights: a \(sha256 12\), now none"),
    ):
        with pytest.raises(Error, match=rf"new/stages.json: step 1, was begun with {shown}"):
            records.begin("one", "step 1", other, "one_*")
    made = {"file": "one.caffemodel", "sha256": "34"}
    records.finish("one", made)
    records = Records(folder)
    assert records.made("one") == made
    records.check("one", made)
    with pytest.raises(Error, match=r"new/one.caffemodel: changed since one was finished, so the later stages would not fit"):
        records.check("one", {**made, "sha256": "56"})


def test_a_step_without_results_may_begin_anew(tmp_path: Path) -> None:
    Records(tmp_path).begin("one", "step 1", {**FACTS, "iterations": 6}, "one_*")
    assert Records(tmp_path).begin("one", "step 1", FACTS, "one_*") is False
    (tmp_path / "one_iter_5").touch()
    assert Records(tmp_path).begin("one", "step 1", FACTS, "one_*") is True
    records = Records(tmp_path)
    records.finish("one", {"file": "one_iter_5", "sha256": "34"})
    (tmp_path / "one_iter_5").unlink()
    with pytest.raises(Error, match="was begun with other iterations: 5, now 6"):
        records.begin("one", "step 1", {**FACTS, "iterations": 6}, "one_*")


@pytest.mark.parametrize(
    "text",
    ["", "[", "[1]", "3", '{"one": 1}', '{"one": {"made_from": 1}}', '{"one": {"made_from": {}, "made": {"file": "x"}}}'],
)
def test_damaged_records(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORDS).write_text(text)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / RECORDS}: damaged: train anew with another --out")):
        Records(tmp_path)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    Records(tmp_path)
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(Error, match=r"has other files, such as photo.jpg, but no stages.json: give a new folder as --out"):
        Records(tmp_path)
