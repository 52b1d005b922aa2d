"""The proposals of an RPN: against its rois, in pixels of the image, and as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_alternating import CFG, INPUTS, TEST_RPN

import minicaffe
from minicaffe.data.images import load_image, prepare_image
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection import proposal_settings, write_proposals
from minicaffe.detection.inputs import read_proposals
from minicaffe.detection.proposals import proposal_files, propose
from minicaffe.prototxt import parse_net
from minicaffe.settings import read_settings


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> minicaffe.Net:
    monkeypatch.chdir(tmp_path)
    Path("small.yml").write_text(CFG)
    for i, (height, width) in enumerate([(45, 61), (80, 50)]):
        pixels = np.random.default_rng(i).integers(0, 255, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(f"{i}.png")
    minicaffe.rng.set_random_seed(1)
    return minicaffe.Net(parse_net(TEST_RPN), minicaffe.TEST, settings=proposal_settings(read_settings("small.yml")))


def entries(*names: str) -> list[Entry]:
    return [Entry(image=name, boxes=np.zeros((0, 4)), gt_classes=np.zeros(0, int)) for name in names]


def test_the_limits_are_the_original_scripts_and_nothing_else_changes() -> None:
    given = read_settings_of(RPN_PRE_NMS_TOP_N=5, RPN_POST_NMS_TOP_N=2, RPN_NMS_THRESH=0.6)
    assert proposal_settings(given) == read_settings_of(RPN_PRE_NMS_TOP_N=-1, RPN_POST_NMS_TOP_N=2000, RPN_NMS_THRESH=0.6)


def read_settings_of(**test: object) -> DetectionSettings:
    return minicaffe.settings.settings_from({"TEST": test, "TRAIN": {"BG_THRESH_LO": 0.0}})


@pytest.mark.parametrize("name", ["0.png", "1.png"])
def test_proposals_are_the_rois_in_pixels_of_the_image(net: minicaffe.Net, name: str) -> None:
    image = load_image(name)
    height, width = image.shape[:2]
    data, im_info = prepare_image(image, net.settings)
    for blob, array in (("data", data), ("im_info", im_info)):
        net.blobs[blob].reshape(*array.shape)
    net.forward(data=data, im_info=im_info)
    boxes = net.blobs["rois"].data.reshape(-1, 5)[:, 1:] / im_info[0, 2:]
    assert len(boxes) > 5  # more than the settings of the file keep
    expected = np.clip(boxes, 0, [width - 1, height - 1, width - 1, height - 1])
    found = propose(net, image)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.float32 and (found >= 0).all() and (found[:, 2:] <= [width - 1, height - 1]).all()


def test_files_that_training_reads(net: minicaffe.Net) -> None:
    done = list[tuple[int, int]]()
    write_proposals(net, entries("0.png", "1.png"), "made/here", on_image=lambda *numbers: done.append(numbers))
    assert done == [(1, 2), (2, 2)]
    for name in ("0.png", "1.png"):
        np.testing.assert_array_equal(read_proposals("made/here", Path(name)), propose(net, load_image(name)))
    np.save("made/here/1.npy", np.zeros((0, 4)))
    write_proposals(net, entries("0.png", "1.png"), "made/here", skip_existing=True)
    assert not np.load("made/here/1.npy").size
    write_proposals(net, entries("0.png", "1.png"), "made/here")
    assert np.load("made/here/1.npy").size


def test_what_is_refused(net: minicaffe.Net) -> None:
    with pytest.raises(minicaffe.Error, match=r"a/1.jpg and b/1.png: the proposals of both would be 1.npy: rename one"):
        proposal_files(entries("0.png", "a/1.jpg", "b/1.png"), "made")
    with pytest.raises(minicaffe.Error, match=r"an image of shape \(4, 5, 3\) is not a file: its proposals have no name"):
        proposal_files([{**entries("")[0], "image": np.zeros((4, 5, 3), np.uint8)}], "made")
    Path("file").touch()
    with pytest.raises(minicaffe.Error, match=r"file: cannot make the folder of the proposals: File exists"):
        write_proposals(net, entries("0.png"), "file")
    Path("made").mkdir()
    Path("made/0.npy").symlink_to("elsewhere")
    with pytest.raises(minicaffe.Error, match=r"made/0.npy: this is a link"):
        write_proposals(net, entries("0.png"), "made")
    other = minicaffe.Net(parse_net(INPUTS, "other.prototxt"), minicaffe.TEST)
    with pytest.raises(
        minicaffe.Error, match=r"other.prototxt: the test net of an RPN has the inputs data and im_info, and a bl"
    ):
        propose(other, load_image("0.png"))


@pytest.mark.parametrize(("layer", "blob"), [("rpn_cls_score", "flat"), ("rpn_bbox_pred", "rpn_bbox_pred")])
def test_scores_and_deltas_that_are_not_numbers(net: minicaffe.Net, layer: str, blob: str) -> None:
    net.params[layer][0].data[...] = np.nan
    with pytest.raises(minicaffe.Error, match=rf'NaN or infinite in "{blob}"'):
        propose(net, load_image("0.png"))
