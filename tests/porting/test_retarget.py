"""Detection prototxts for another number of classes: what changes, what stays, that old weights fit the rest."""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from recordings import SHARED, needs

from minicaffe.cli import main
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net
from minicaffe.porting.retarget import Retargeted, retarget

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "examples" / "shapes"
MODELS = SHARED / "models"
needs_shared = needs(MODELS)

HEAD = """# a detector
name: "small"
input: "data" input_shape { dim: 1 dim: 3 dim: 20 dim: 24 }
input: "rois" input_shape { dim: 2 dim: 5 }
layer { name: "roi" type: "ROIPooling" bottom: "data" bottom: "rois" top: "roi"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 1 } }
layer { name: "fc6" type: "InnerProduct" bottom: "roi" top: "fc6" inner_product_param { num_output: 21 } }
layer { name: "relu6" type: "ReLU" bottom: "fc6" top: "fc6" }
layer {
  name: 'cls_score'   # 21 classes
  type: "InnerProduct" bottom: "fc6" top: "cls_score"
  inner_product_param { num_output: %d } # 21 = 20 + 1
}
layer { name: "bbox_pred" type: "InnerProduct" bottom: "fc6" top: "bbox_pred"
  inner_product_param {
    num_output: %d # 4 * 21, one box for each of 21
  }
}
layer { name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "net.prototxt"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="") if line[0] == "+"][
        1:
    ]


def test_a_fast_rcnn_head(tmp_path: Path) -> None:
    text = HEAD % (21, 84)
    done = retarget(written(tmp_path, text), 4)
    assert changed_lines(text, done.text) == [
        "+  name: 'cls_score_4'   # 21 classes",
        "+  inner_product_param { num_output: 4 } # 21 = 20 + 1",
        '+layer { name: "bbox_pred_4" type: "InnerProduct" bottom: "fc6" top: "bbox_pred"',
        "+    num_output: 16 # 4 * 4, one box for each of 4",
    ]
    assert (done.old, done.new, done.agnostic, done.notes) == (21, 4, False, [])
    assert done.renamed == {"cls_score": "cls_score_4", "bbox_pred": "bbox_pred_4"}
    assert [(e.place.line, e.layer, e.field, e.old, e.new) for e in done.edits] == [
        (10, "cls_score", "name", "cls_score", "cls_score_4"),
        (12, "cls_score", "inner_product_param.num_output", 21, 4),
        (14, "bbox_pred", "name", "bbox_pred", "bbox_pred_4"),
        (16, "bbox_pred", "inner_product_param.num_output", 84, 16),
    ]


def test_agnostic_boxes_and_other_outputs_stay(tmp_path: Path) -> None:
    extra = 'layer { name: "angle" type: "InnerProduct" bottom: "fc6" top: "angle" inner_product_param { num_output: 5 } }\n'
    done = retarget(written(tmp_path, HEAD % (21, 8) + extra), 4)
    assert done.renamed == {"cls_score": "cls_score_4"}
    assert done.agnostic
    assert [note.partition(": ")[2] for note in done.notes] == [
        'InnerProduct layer "angle": not changed: 5 outputs are neither 84 (boxes of 21 classes) nor 8'
    ]


def test_line_ends_bytes_and_names_of_before(tmp_path: Path) -> None:
    text = (
        (HEAD % (3, 12)).replace("cls_score'", "cls_score_3'").replace("# a detector", "# d\udce9tecteur").replace("\n", "\r\n")
    )
    done = retarget(written(tmp_path, text), 5)
    assert done.renamed["cls_score_3"] == "cls_score_5"
    assert done.text.count("\r\n") == text.count("\r\n") == done.text.count("\n")
    assert done.text.startswith("# d\udce9tecteur\r\n")


@pytest.mark.parametrize("quoted", ['"\'num_classes\': 21"', "'{\"num_classes\": 21, \"x\": 21}'", '"{\\"num_classes\\": 21}"',
                                    "'a: 1, ' 'num_classes: 21'"])  # fmt: skip
def test_param_str_however_it_is_quoted(tmp_path: Path, quoted: str) -> None:
    text = f"layer {{ name: 'd' type: 'Python' top: 'x' python_param {{ module: 'm' layer: 'L' param_str: {quoted} }} }}\n"
    done = retarget(written(tmp_path, text), 4)
    old, new = (parse_net(t).param.layer[0].python_param.param_str for t in (text, done.text))
    assert new == old.replace("21", "4", 1)
    assert not done.renamed


def test_a_param_str_whose_number_is_cut_in_two(tmp_path: Path) -> None:
    text = (
        "layer { name: 'd' type: 'Python' top: 'x' python_param { module: 'm' layer: 'L' param_str: 'num_' 'classes: 21' } }\n"
    )
    with pytest.raises(
        Error,
        match=r"python_param\.param_str: 21 is split over two strings or written with escapes: write it in one plain string",
    ):
        retarget(written(tmp_path, text), 4)


def test_all_ways_to_a_head_are_walked(tmp_path: Path) -> None:
    """A Reshape on each of two ways from the softmax to the scores."""
    to_rows = "reshape_param { shape { dim: -1 dim: 21 } }"
    reshapes = "".join(
        f'layer {{ name: "{name}" type: "Reshape" bottom: "cls_score" top: "{name}" {to_rows} }}\n' for name in "ab"
    )
    joined = 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }\n'
    text = (HEAD % (21, 84)).replace('bottom: "cls_score" top: "cls_prob"', 'bottom: "sum" top: "cls_prob"')
    cut = text.index('layer { name: "cls_prob"')
    done = retarget(written(tmp_path, text[:cut] + reshapes + joined + text[cut:]), 7)
    dims = {
        layer.name: list(layer.reshape_param.shape.dim) for layer in parse_net(done.text).param.layer if layer.type == "Reshape"
    }
    assert dims == {"a": [-1, 7], "b": [-1, 7]}


def test_a_head_of_both_phases_in_one_file(tmp_path: Path) -> None:
    text = (HEAD % (21, 84)).replace('top: "cls_prob" }', 'top: "cls_prob" include { phase: TEST } }')
    text += 'input: "labels" input_shape { dim: 2 }\n'
    text += 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "cls_score" bottom: "labels" top: "loss" '
    text += "include { phase: TRAIN } }\n"
    done = retarget(written(tmp_path, text), 7)
    assert len(done.edits) == 4
    assert done.renamed == {"cls_score": "cls_score_7", "bbox_pred": "bbox_pred_7"}


def test_two_classes_need_a_word_about_the_boxes(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD % (2, 8))
    with pytest.raises(
        Error, match=r'layer "bbox_pred" has 8 outputs: boxes of 2 classes, or class-agnostic ones\? give --boxes'
    ):
        retarget(path, 4)
    assert retarget(path, 4, boxes="class").renamed == {"cls_score": "cls_score_4", "bbox_pred": "bbox_pred_4"}
    assert retarget(path, 4, boxes="agnostic").renamed == {"cls_score": "cls_score_4"}


SSD = """input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "loc" type: "Convolution" bottom: "data" top: "loc" convolution_param { num_output: %d kernel_size: 1 } }
layer { name: "loc_p" type: "Permute" bottom: "loc" top: "loc_p" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "loc_f" type: "Flatten" bottom: "loc_p" top: "loc_f" }
layer { name: "conf" type: "Convolution" bottom: "data" top: "conf" convolution_param { num_output: %d kernel_size: 1 } }
layer { name: "conf_p" type: "Permute" bottom: "conf" top: "conf_p" permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conf_f" type: "Flatten" bottom: "conf_p" top: "conf_f" }
layer { name: "conf_r" type: "Reshape" bottom: "conf_f" top: "conf_r" reshape_param { shape { dim: [0, -1, 3] } } }
layer { name: "conf_s" type: "Softmax" bottom: "conf_r" top: "conf_s" softmax_param { axis: 2 } }
layer { name: "conf_sf" type: "Flatten" bottom: "conf_s" top: "conf_sf" }
layer { name: "prior" type: "PriorBox" bottom: "conf" bottom: "data" top: "prior"
  prior_box_param { min_size: 4 max_size: 6 clip: false variance: [0.1, 0.1, 0.2, 0.2] } }
layer { name: "out" type: "DetectionOutput" bottom: "loc_f" bottom: "conf_sf" bottom: "prior" top: "out"
  detection_output_param { num_classes: 3 share_location: %s keep_top_k: 5 nms_param { nms_threshold: 0.4 }
    save_output_param { label_map_file: "labels.prototxt" } } }
"""


def test_ssd_training_data_names_its_label_map(tmp_path: Path) -> None:
    data = "layer { name: 'd' type: 'AnnotatedData' top: 'x' top: 'l' include { phase: TRAIN } annotated_data_param { %s } }"
    notes = retarget(written(tmp_path, SSD % (8, 6, "true") + data % "label_map_file: 'map.txt'"), 5).notes
    assert notes[-1].endswith('AnnotatedData layer "d": its label_map_file map.txt must list the new classes')


@pytest.mark.parametrize(("shared", "loc"), [("true", 8), ("false", 24)])
def test_ssd(tmp_path: Path, shared: str, loc: int) -> None:
    done = retarget(written(tmp_path, SSD % (loc, 6, shared)), 5)
    assert done.renamed == {"conf": "conf_5"} | ({} if shared == "true" else {"loc": "loc_5"})
    layers = {layer.name: layer for layer in parse_net(done.text).param.layer}
    assert layers["conf_5"].convolution_param.num_output == 10
    assert list(layers["conf_r"].reshape_param.shape.dim) == [0, -1, 5]
    assert layers["out"].detection_output_param.num_classes == 5
    assert layers["loc" if shared == "true" else "loc_5"].convolution_param.num_output == (8 if shared == "true" else 40)
    assert len([note for note in done.notes if "its label_map_file labels.prototxt must list the new classes" in note]) == 1
    text = done.text.replace('save_output_param { label_map_file: "labels.prototxt" }', "")
    assert Net(parse_net(text), 1).forward()["out"].shape[-1] == 7


@pytest.mark.parametrize(
    ("text", "classes", "message"),
    [
        (HEAD % (21, 84), 1, "--classes 1: give at least 2; the background counts as a class"),
        (HEAD % (21, 84), 21, "it already has 21 classes"),
        ((HEAD % (21, 84)).replace("Softmax", "Sigmoid"), 4, "no class count found: the net has no softmax after a ROI layer"),
        (SSD % (8, 7, "true"), 4, 'layer "conf" has num_output 7, not a multiple of 3 for 3 classes'),
        ((HEAD % (21, 84)).replace('"fc6" type', '"cls_score_4" type'), 4,
         'cannot rename layer "cls_score": "cls_score_4" is already a layer'),
        (HEAD % (21, 84) + 'layer { name: "s" type: "Softmax" bottom: "bbox_pred" top: "s" }', 4,
         'layer "bbox_pred" is for 84 classes, another layer for 21'),
        ("layers { name: 'x' type: RELU bottom: 'x' }", 4, "no class count found"),
        ((HEAD % (21, 84)).replace("ROIPooling", "Flatten"), 4,
         'if it is a classifier: change num_output of "cls_score" and its name'),
    ],
)  # fmt: skip
def test_errors(tmp_path: Path, text: str, classes: int, message: str) -> None:
    with pytest.raises(Error) as caught:
        retarget(written(tmp_path, text), classes)
    assert message in str(caught.value)
    assert "net.prototxt" in str(caught.value) or classes == 1


def test_an_output_dim_that_does_not_fit_its_convolution(tmp_path: Path) -> None:
    text = (SHAPES / "rfcn" / "test.prototxt").read_text().replace("output_dim: 4\n", "output_dim: 5\n")
    with pytest.raises(Error, match='layer "rfcn_cls" has num_output 36, but 5 classes need 45 there'):
        retarget(written(tmp_path, text), 4)


def test_a_frozen_head_is_noted(tmp_path: Path) -> None:
    text = (HEAD % (21, 84)).replace('top: "cls_score"', 'top: "cls_score" param { lr_mult: 0 }')
    assert "its lr_mult is 0, so the new layer would never learn" in retarget(written(tmp_path, text), 4).notes[0]


@given(st.integers(3, 200), st.integers(2, 200))
def test_there_and_back(tmp_path_factory: pytest.TempPathFactory, old: int, new: int) -> None:
    if old == new:
        return
    folder = tmp_path_factory.mktemp("net")
    text = HEAD.replace("cls_score'", f"cls_score_{old}'").replace('"bbox_pred" type', f'"bbox_pred_{old}" type') % (
        old,
        4 * old,
    )
    there = retarget(written(folder, text), new, boxes="class").text
    back = retarget(written(folder, there), old, boxes="class").text
    assert parse_net(back).param == parse_net(text).param


@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_the_shapes_detectors_with_their_old_weights(tmp_path: Path, kind: str) -> None:
    """Train and test net get the same new layers; all other weights load as they were; the net counts the new classes."""
    weights = SHAPES / kind / f"shapes_{kind}.caffemodel"
    pair: dict[str, Retargeted] = {}
    for name in ("train", "test"):
        pair[name] = retarget(SHAPES / kind / f"{name}.prototxt", 6)
        (tmp_path / f"{name}.prototxt").write_text(pair[name].text)
    assert pair["train"].renamed == pair["test"].renamed
    test, old = Net(tmp_path / "test.prototxt", 1), Net(SHAPES / kind / "test.prototxt", str(weights), 1)
    report = test.copy_from(weights)
    assert report.missing == list(pair["test"].renamed.values())
    assert report.unused == list(pair["test"].renamed)
    for name in report.loaded:
        for mine, theirs in zip(test.params[name], old.params[name], strict=True):
            np.testing.assert_array_equal(mine.data, theirs.data)
    train = Net(tmp_path / "train.prototxt", 0)
    assert train.copy_from(weights).missing == report.missing
    test.blobs["data"].data[...] = np.random.default_rng(0).normal(0, 50, test.blobs["data"].shape)
    test.blobs["im_info"].data[...] = 240, 320, 1
    outputs = test.forward()
    assert outputs["cls_prob"].shape[1] == 6
    assert outputs["bbox_pred"].shape[1] == 24
    np.testing.assert_allclose(outputs["cls_prob"].sum(axis=1), 1, rtol=1e-5)


def run(*words: str) -> str:
    result = CliRunner().invoke(main, ["retarget", *words])
    return result.output if not result.exit_code else f"error: {result.output}"


def test_command(tmp_path: Path) -> None:
    path, out = str(SHAPES / "rfcn" / "test.prototxt"), tmp_path / "out.prototxt"
    said = run(path, "--classes", "2", "--report")
    assert said.startswith("4 -> 2 classes, the background counted\nline ")
    assert ": psroipooled_loc_rois: psroi_pooling_param.output_dim: 16 -> 8\n" in said
    assert "new layers, which start untrained: rfcn_cls -> rfcn_cls_2, rfcn_bbox -> rfcn_bbox_2;" in said
    assert run(path, "--classes", "2", "--out", str(out)) == f"written: {out} (4 -> 2 classes)\n"
    assert run(path, "--classes", "2") == out.read_text()
    assert "it already has 4 classes" in run(path, "--classes", "4")


EXPECTED = {
    "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/class-aware/train_ohem.prototxt": (8, ["rfcn_cls", "rfcn_bbox"], False),
    "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/class-aware/test.prototxt": (8, ["rfcn_cls", "rfcn_bbox"], False),
    "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/train_agnostic_ohem.prototxt": (4, ["rfcn_cls"], True),
    "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/test_agnostic.prototxt": (4, ["rfcn_cls"], True),
    "py-R-FCN/coco/ResNet-101/rfcn_end2end/test_agnostic.prototxt": (4, ["rfcn_cls"], True),
    "py-faster-rcnn/pascal_voc/ZF/faster_rcnn_end2end/train.prototxt": (6, ["cls_score", "bbox_pred"], False),
    "py-faster-rcnn/coco/VGG16/fast_rcnn/train.prototxt": (5, ["cls_score", "bbox_pred"], False),
    "py-faster-rcnn/pascal_voc/ZF/faster_rcnn_alt_opt/stage1_rpn_train.pt": (1, [], False),
}


@needs_shared
@pytest.mark.parametrize("name", EXPECTED)
def test_published_nets(name: str) -> None:
    done = retarget(MODELS / name, 7)
    assert (len(done.edits), list(done.renamed), done.agnostic) == EXPECTED[name]
    assert not done.notes


@needs_shared
def test_a_region_proposal_net_needs_no_change() -> None:
    with pytest.raises(Error, match=r"a region proposal net \(object or not\) fits any number of classes unchanged"):
        retarget(MODELS / "py-faster-rcnn/pascal_voc/ZF/faster_rcnn_alt_opt/rpn_test.pt", 7)


@pytest.mark.slow
@needs_shared
def test_a_published_ssd_runs_with_its_other_weights(tmp_path: Path) -> None:
    folder = SHARED / "zoo" / "hyperlpr_mininet_ssd"
    done = retarget(folder / "mininet_ssd_v1.prototxt", 5)
    net = Net(written(tmp_path, done.text), 1)
    assert net.copy_from(folder / "mininet_ssd_v1.caffemodel").missing == list(done.renamed.values())
    assert len(done.renamed) == 6
    assert net.forward()["detection_out"].shape[-1] == 7
