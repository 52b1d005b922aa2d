"""Ranks read shards of the data that together are the batches of one process, in the same order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from first import first

from minicaffe import rng
from minicaffe.data.database import new_database
from minicaffe.data.shard import WHOLE, Shard, reading_shard
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.mode import TEST, TRAIN
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2

BATCH, RECORDS = 3, 11


def records(folder: Path, kind: str) -> str:
    """A data layer's parameters, for RECORDS records with the labels 0 to 10; {batch} is left open."""
    if kind in ("LMDB", "LEVELDB"):
        pytest.importorskip({"LMDB": "lmdb", "LEVELDB": "plyvel"}[kind], reason=f"the extra for {kind} is not installed")
        with new_database(str(folder / kind), kind.lower()) as writer:
            for i in range(RECORDS):
                datum = caffe_pb2.Datum(channels=1, height=2, width=3, label=i, data=bytes([i] * 6))
                writer.put(f"{i:04}".encode(), datum.SerializeToString())
        return f'type: "Data" data_param {{ source: "{folder / kind}" backend: {kind} batch_size: {{batch}} }}'
    if kind.startswith("HDF5"):
        h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
        for name, rows in (("a", range(7)), ("b", range(7, RECORDS))):
            with h5py.File(folder / f"{name}.h5", "w") as file:
                file["data"], file["label"] = np.zeros((len(rows), 2, 3)), np.array(rows)
        (folder / "files.txt").write_text(f"{folder / 'a.h5'}\n{folder / 'b.h5'}\n")
        shuffle = "shuffle: true" if kind == "HDF5 shuffled" else ""
        return f'type: "HDF5Data" hdf5_data_param {{ source: "{folder / "files.txt"}" batch_size: {{batch}} {shuffle} }}'
    from PIL import Image

    lines = []
    for i in range(RECORDS):
        Image.fromarray(np.full((2, 3, 3), i, np.uint8)).save(folder / f"{i}.png")
        lines.append(f"{folder / str(i)}.png {i}")
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    return f'type: "ImageData" image_data_param {{ source: "{folder / "images.txt"}" batch_size: {{batch}} shuffle: true }}'


def net_of(parameters: str, batch: int, shard: Shard, phase: int = TRAIN) -> Net:
    rng.set_random_seed(3)
    with reading_shard(shard):
        return Net(
            parse_net(f'layer {{ name: "data" top: "data" top: "label" {parameters.replace("{batch}", str(batch))} }}'), phase
        )


def labels(net: Net) -> list[int]:
    net.forward()
    return net.blobs["label"].data.reshape(-1).astype(int).tolist()


KINDS = ["LMDB", "LEVELDB", "HDF5", "HDF5 shuffled", "images"]


@pytest.mark.parametrize(("kind", "count"), first(3, [(kind, 2 + i % 2) for i, kind in enumerate(KINDS)]))
def test_shards_are_one_process_whose_batch_is_all_of_theirs(kind, count, tmp_path):
    parameters = records(tmp_path, kind)
    whole = net_of(parameters, BATCH * count, WHOLE)
    ranks = [net_of(parameters, BATCH, Shard(rank, count)) for rank in range(count)]
    for _ in range(6):  # around the data several times
        expected = labels(whole)
        for rank, net in enumerate(ranks):
            assert labels(net) == expected[rank::count]


@pytest.mark.parametrize("kind", first(2, KINDS))
def test_other_ranks_go_on_at_the_next_record(kind, tmp_path):
    parameters = records(tmp_path, kind)
    before = [net_of(parameters, 3, Shard(rank, 2)) for rank in range(2)]
    for net in before:
        labels(net)
        labels(net)
    state = json.loads(json.dumps(before[0].layers[0].training_state()))
    whole = net_of(parameters, 6, WHOLE)
    labels(whole)
    labels(whole)
    after = [net_of(parameters, 2, Shard(rank, 3)) for rank in range(3)]
    for net in after:
        net.layers[0].restore_training_state(state)
    for _ in range(4):
        expected = labels(whole)
        assert [labels(net) for net in after] == [expected[rank::3] for rank in range(3)]


def test_a_test_net_reads_everything(tmp_path):
    parameters = records(tmp_path, "images").replace("shuffle: true", "")
    assert labels(net_of(parameters, BATCH, Shard(1, 2), TEST)) == [0, 1, 2]


def test_random_numbers_differ_by_rank_and_not_by_run():
    def drawn(rank: int) -> list[float]:
        generator = np.random.default_rng(7)
        Shard(rank, 3).rank_stream(generator)
        return generator.random(4).tolist()

    assert drawn(0) == drawn(0)
    assert len({tuple(drawn(rank)) for rank in range(3)}) == 3


ROI_DATA = """layer { name: "data" type: "RoIData" top: "data" top: "im_info" top: "gt_boxes"
  python_param { param_str: "'num_classes': 2" } }"""


def test_an_iteration_of_ranks_sees_the_images_of_iter_size_passes():
    entries = [
        {"image": np.full((40, 60, 3), i, np.uint8), "boxes": np.array([[i, 2, i + 20, 30]]), "gt_classes": np.array([1])}
        for i in range(7)
    ]

    def reader(shard: Shard) -> RoIData:
        with reading_shard(shard):
            layer = Net(parse_net(ROI_DATA), TRAIN).layers[0]
        assert isinstance(layer, RoIData)
        layer.set_roidb(entries)
        return layer

    orders = []
    for shard in (WHOLE, Shard(0, 2), Shard(1, 2)):
        rng.set_random_seed(5)
        layer = reader(shard)
        with rng.of_ranks(shard.rank):
            orders.append([int(layer._next_batch()[0]) for _ in range(12 // shard.count)])
    whole, first, second = orders
    assert whole[0::2] == first and whole[1::2] == second
    assert sorted(whole[:7]) == list(range(7))


def annotated(folder: Path) -> str:
    """AnnotatedData of RECORDS images, the boxes of image i of class i; {batch} is left open."""
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    with new_database(str(folder / "boxes"), "lmdb") as writer:
        for i in range(RECORDS):
            item = caffe_pb2.AnnotatedDatum(datum=caffe_pb2.Datum(channels=3, height=4, width=6, data=bytes(range(72))))
            item.annotation_group.add(group_label=i).annotation.add(bbox=caffe_pb2.NormalizedBBox(xmax=0.5, ymax=0.5))
            writer.put(f"{i:04}".encode(), item.SerializeToString())
    more = f'data_param {{ source: "{folder / "boxes"}" backend: LMDB batch_size: {{batch}} }}'
    return f'type: "AnnotatedData" transform_param {{ mirror: true }} {more}'


def windows(folder: Path) -> str:
    """WindowData of four windows of one image; {batch} is left open."""
    from PIL import Image

    pixels = np.random.default_rng(2).integers(0, 256, (20, 24, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "image.png")
    boxes = "3 0.8 4 5 15 12\n1 0.9 0 0 7 7\n2 0.1 2 1 12 17\n4 0.2 0 0 3 3\n"
    (folder / "windows.txt").write_text(f"# 0\n{folder / 'image.png'}\n3\n20\n24\n4\n{boxes}")
    param = f'window_data_param {{ source: "{folder / "windows.txt"}" batch_size: {{batch}} fg_fraction: 0.5 }}'
    return f'type: "WindowData" transform_param {{ crop_size: 8 mirror: true }} {param}'


def classes(net: Net) -> list[int]:
    """The classes of the next batch's boxes."""
    net.forward()
    return net.blobs["label"].data[0, 0, :, 1].astype(int).tolist()


def test_annotated_data_is_shared_with_its_boxes(tmp_path):
    parameters = annotated(tmp_path)
    whole = net_of(parameters, BATCH * 2, WHOLE)
    ranks = [net_of(parameters, BATCH, Shard(rank, 2)) for rank in range(2)]
    for _ in range(4):
        expected = classes(whole)
        assert [classes(net) for net in ranks] == [expected[0::2], expected[1::2]]
    state = json.loads(json.dumps(ranks[1].layers[0].training_state()))
    after = [net_of(parameters, 2, Shard(rank, 3)) for rank in range(3)]
    for net in after:
        net.layers[0].restore_training_state(state)
    expected = classes(whole)
    assert [classes(net) for net in after] == [expected[rank::3] for rank in range(3)]


@pytest.mark.parametrize("records_of", [annotated, windows])
def test_ranks_draw_numbers_of_their_own_and_go_on_with_them(records_of, tmp_path):
    parameters = records_of(tmp_path)

    def drawn(net: Net, count: int) -> list[bytes]:
        made = []
        for _ in range(count):
            net.forward()
            made.append(net.blobs["data"].data.tobytes())
        return made

    ranks = [net_of(parameters, 4, Shard(rank, 2)) for rank in range(2)]
    first, second = (drawn(net, 3) for net in ranks)
    assert first != second
    states = [json.loads(json.dumps(net.layers[0].training_state())) for net in ranks]
    again = [net_of(parameters, 4, Shard(rank, 2)) for rank in range(2)]
    others = [net_of(parameters, 4, Shard(rank, 2)) for rank in range(2)]
    for rank in range(2):
        again[rank].layers[0].restore_training_state(states[rank])
        others[rank].layers[0].restore_training_state(states[0])  # of another rank, for rank 1
    straight = [drawn(net, 3) for net in ranks]
    assert [drawn(net, 3) for net in again] == straight
    first, second = (drawn(net, 3) for net in others)
    assert first == straight[0]
    assert second not in straight
