"""AnnotatedData with a roidb in place of its database."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from batches import batches, image, net_of, same
from PIL import Image

from minicaffe import Net, rng
from minicaffe.data.annotated import annotated_datum, entry_rows, parse_annotated
from minicaffe.data.roidb import add_flipped, load_roidb
from minicaffe.data.roidb_entry import Entry, Roidb
from minicaffe.data.shard import Shard, reading_shard
from minicaffe.errors import DataError, LayerError, PrototxtWarning
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.layers.ssd.detection_files import labels_by_name
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.proto import caffe_pb2

CLASSES = ["__background__", "cat", "dog"]
HEIGHT, WIDTH = 8, 12
BOXES = [[[1, 2, 5, 6]], [], [[0, 0, 4, 3], [6, 4, 11, 7], [2, 2, 2, 2]]]
KINDS = [[1], [], [2, 1, 2]]
MAP = 'item { name: "dog" label: 1 display_name: "d" } item { name: "17" label: 4 display_name: "cat" }'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with three images and their annotations."""
    monkeypatch.chdir(tmp_path)
    images = []
    for i, (boxes, kinds) in enumerate(zip(BOXES, KINDS, strict=True)):
        Image.fromarray(image(i, HEIGHT, WIDTH)[..., ::-1]).save(f"{i}.png")
        images.append({"image": f"{i}.png", "boxes": boxes, "classes": kinds})
    Path("roidb.json").write_text(json.dumps({"classes": CLASSES, "images": images}))
    return tmp_path


def roidb() -> Roidb:
    return load_roidb("roidb.json")[0]


def text(more: str = "", annotations: str = "", batch: int = 3) -> str:
    size = f"resize_param {{ height: {HEIGHT} width: {WIDTH} }}"
    return (
        f'layer {{ name: "in" type: "AnnotatedData" top: "data" top: "label" transform_param {{ {size} {more} }}\n'
        f'annotated_data_param {{ {annotations} }} data_param {{ source: "gone" backend: LMDB batch_size: {batch} }} }}'
    )


def reader(net: Net) -> AnnotatedData:
    layer = net.layers[0]
    assert isinstance(layer, AnnotatedData)
    return layer


def fed(entries: Roidb, description: str, phase: Phase = TEST, seed: int = 1) -> Net:
    net: Net = net_of(description, phase, seed)
    reader(net).set_roidb(entries, CLASSES)
    return net


def test_images_and_boxes() -> None:
    ((data, label),) = batches(fed(roidb(), text("mean_value: 100 scale: 0.5")), 1)
    for i in range(3):
        np.testing.assert_array_equal(data[i], (image(i, HEIGHT, WIDTH).transpose(2, 0, 1) - np.float32(100)) * 0.5)
    expected = [
        [0, 1, 0, 1 / 12, 2 / 8, 6 / 12, 7 / 8, 0],
        [2, 2, 0, 0, 0, 5 / 12, 4 / 8, 0],
        [2, 2, 1, 2 / 12, 2 / 8, 3 / 12, 3 / 8, 0],
        [2, 1, 0, 6 / 12, 4 / 8, 1, 1, 0],
    ]
    np.testing.assert_array_equal(label, np.array([[expected]], np.float32))


def test_ignored_boxes_are_difficult() -> None:
    entry = roidb()[0]
    entry["ignored_boxes"], entry["ignored_classes"] = np.array([[3, 3, 8, 5], [0, 0, 1, 1]]), np.array([1, 2])
    entry["boxes"] = np.concatenate([entry["boxes"], [[0, 0, 11, 7]]])  # a proposal
    entry["gt_classes"] = np.array([1, 0])
    rows = entry_rows(entry, HEIGHT, WIDTH)
    assert rows[:, [0, 1, 6]].tolist() == [[1, 0, 0], [1, 1, 1], [2, 0, 1]]
    np.testing.assert_array_equal(rows[1, 2:6], np.array([3 / 12, 3 / 8, 9 / 12, 6 / 8], np.float32))
    _, again = parse_annotated(annotated_datum(caffe_pb2.Datum(), rows).SerializeToString(), "item")
    np.testing.assert_array_equal(again, rows)


def test_flipped_entries_are_mirrored_with_all_their_boxes() -> None:
    entry = roidb()[0]
    entry["ignored_boxes"], entry["ignored_classes"] = np.array([[0, 0, 2, 2]]), np.array([2])
    data, label = batches(fed(add_flipped([entry]), text(batch=2)), 1)[0]
    np.testing.assert_array_equal(data[1], data[0][:, :, ::-1])
    np.testing.assert_allclose(label[0, 0, 2:, 3], 1 - label[0, 0, :2, 5], atol=1e-6)


def test_labels_by_the_label_map() -> None:
    Path("map.txt").write_text(MAP)
    label = batches(fed(roidb(), text(annotations='label_map_file: "map.txt"')), 1)[0][1]
    assert label[0, 0, :, 1].tolist() == [4, 1, 1, 4]
    with pytest.raises(DataError, match=r'map\.txt: no item has the name "bird"; it has d, cat'):
        labels_by_name("map.txt", ["__background__", "bird"])


def test_a_missing_label_map_is_a_warning() -> None:
    net = net_of(text(annotations='label_map_file: "map.txt"'))
    with pytest.warns(PrototxtWarning, match="map.txt is missing: labels are the numbers of the classes"):
        reader(net).set_roidb(roidb(), CLASSES)
    assert batches(net, 1)[0][1][0, 0, :, 1].tolist() == [1, 2, 2, 1]


SAMPLER = "batch_sampler { sampler { min_scale: 0.3 max_scale: 1 } max_sample: 1 max_trials: 50 }"


def test_training_shuffles_each_epoch_and_testing_keeps_the_order() -> None:
    def order(phase: Phase) -> list[int]:
        net = fed(roidb(), text(batch=1), phase)
        known = {image(i, HEIGHT, WIDTH).transpose(2, 0, 1).astype(np.float32).tobytes(): i for i in range(3)}
        return [known[data[0].tobytes()] for data, _ in batches(net, 12)]

    assert order(TEST) == [0, 1, 2] * 4
    shuffled = order(TRAIN)
    epochs = [shuffled[i : i + 3] for i in range(0, 12, 3)]
    assert all(sorted(epoch) == [0, 1, 2] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1


def test_a_seed_repeats_and_a_state_resumes() -> None:
    description = text("mirror: true distort_param { brightness_prob: 0.5 brightness_delta: 32 }", SAMPLER, batch=2)
    straight = batches(fed(roidb(), description, TRAIN), 10)
    first = fed(roidb(), description, TRAIN)
    assert same(batches(first, 5), straight[:5])
    state = json.loads(json.dumps(reader(first).training_state()))
    for taken in (0, 2):
        other = fed(roidb(), description, TRAIN, seed=77)
        batches(other, taken)
        reader(other).restore_training_state(state)
        assert same(batches(other, 5), straight[5:])
    with pytest.raises(LayerError, match="it was of 3 items, there are 2"):
        reader(fed(roidb()[:2], description, TRAIN)).restore_training_state(state)


def test_ranks_take_turns() -> None:
    def labels(shard: Shard, count: int) -> list[list[float]]:
        rng.set_random_seed(5)
        with reading_shard(shard):
            net = Net(parse_net(text(batch=1)), TRAIN)
        with rng.of_ranks(shard.rank):
            reader(net).set_roidb(roidb(), CLASSES)
            return [label[0, 0, :, 1:].tolist() for _, label in batches(net, count)]

    whole = labels(Shard(), 12)
    assert [labels(Shard(rank, 2), 6) for rank in range(2)] == [whole[0::2], whole[1::2]]


def test_grey_images() -> None:
    net = fed(roidb(), text("force_gray: true"))
    assert batches(net, 1)[0][0].shape == (3, 1, HEIGHT, WIDTH)


def test_pixels_in_place_of_files() -> None:
    pixels = image(5, HEIGHT, WIDTH)
    entry = Entry(image=pixels, boxes=np.array([[0, 0, 3, 3]]), gt_classes=np.array([1]))
    data, _ = batches(fed([entry], text(batch=1)), 1)[0]
    np.testing.assert_array_equal(data[0], pixels.transpose(2, 0, 1))


def test_without_images() -> None:
    net = net_of(text())
    assert reader(net).needs_roidb and net.blobs["data"].shape == (3, 3, HEIGHT, WIDTH)
    with pytest.raises(LayerError, match=r"has no images: there is no database gone .*; give --roidb"):
        net.forward()
    with pytest.raises(LayerError, match="a roidb of 1 images has no image with boxes"):
        reader(net).set_roidb(roidb()[1:2], CLASSES)
    entry = roidb()[0]
    entry["boxes"] = np.array([[0, 0, WIDTH, 3]])
    with pytest.raises(LayerError, match=r"0\.png: box 0, .* is outside the image of 12 x 8"):
        reader(net).set_roidb([entry], CLASSES)
    with pytest.raises(LayerError, match="gone: no such database"):
        net_of(text().replace(f"resize_param {{ height: {HEIGHT} width: {WIDTH} }}", ""))
