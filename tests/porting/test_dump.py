"""minicaffe dump: every kind of file, every clashing field number, damaged files."""

from __future__ import annotations

import os
import random
import re
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from click.testing import CliRunner
from extras import require
from recordings import SHARED, needs

from minicaffe import Net, WeightsError
from minicaffe.cli import common, main
from minicaffe.formats.arrays import read_npz
from minicaffe.formats.fork_numbers import BLOCKS, NVIDIA_FIELDS
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.stored_net import read_stored_net
from minicaffe.formats.weights import encoded_blob, write_binaryproto
from minicaffe.formats.wire import VARINT, encoded, header
from minicaffe.porting.dump import read
from minicaffe.training.snapshots import TrainingState, write_state

needs_shared = needs(SHARED)

NET = """
name: "small"
input: "data" input_shape { dim: 1 dim: 3 dim: 5 dim: 7 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 2 kernel_size: 3 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
"""


def message(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def integer(number: int, value: int) -> bytes:
    return encoded(number << 3 | VARINT) + encoded(value)


def forked(kind: str, *fields: bytes, blob: bool = True) -> bytes:
    """A net of one layer with a fork's fields and a blob (2, 3) of 0 to 5."""
    values = b"".join(bytes(part) for part in encoded_blob(np.arange(6, dtype=np.float32).reshape(2, 3)))
    layer = message(1, b"it") + message(2, kind.encode()) + message(3, b"x") + message(4, b"y")
    return message(1, b"net") + message(100, layer + b"".join(fields) + (message(7, values) if blob else b""))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    net = Net(parse_net(NET))
    net.params["conv"][0].data[...] = np.arange(54).reshape(2, 3, 3, 3)
    net.save(tmp_path / "net.caffemodel")
    return tmp_path / "net.caffemodel"


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["dump", *map(str, words)])
    return result.exit_code, result.output


@needs_shared
def test_reads_every_weights_file_there_is() -> None:
    require("hdf5")
    names = re.compile(r"\.(caffemodel|solverstate|binaryproto|h5)")
    folders = [path for folder in ("zoo", "golden") for path in os.walk(SHARED / folder)]
    files = [Path(folder) / name for folder, _, names_in in folders for name in names_in if names.search(name)]
    assert len(files) >= 60
    for path in files:
        dump = read(path)
        wanted = ".solverstate" if "state" in path.name else ".binaryproto" if "proto" in path.name else ""
        assert dump.arrays and dump.kind.startswith(wanted), path


def test_writes_arrays_by_layer(file: Path, tmp_path: Path) -> None:
    code, output = run(file, "-o", tmp_path / "a.npz")
    assert code == 0 and "(2 arrays)" in output
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["conv.0"].shape == (2, 3, 3, 3) and arrays["conv.0"].flat[53] == 53
        assert arrays["conv.0"].dtype == np.float32 and set(arrays) == {"conv.0", "conv.1"}


def test_without_options_writes_into_the_working_directory(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(file) == (0, "written: net.caffemodel.npz (2 arrays)\n")
    assert [path.name for path in Path().iterdir()] == ["net.caffemodel.npz"] and not Path(f"{file}.npz").exists()
    before = Path("net.caffemodel.npz").stat().st_mtime_ns
    code, output = run(file)
    assert code == 1 and "net.caffemodel.npz already exists: give -o net.caffemodel.npz to replace it" in output
    assert Path("net.caffemodel.npz").stat().st_mtime_ns == before
    assert run(file, "-o", "net.caffemodel.npz")[0] == 0


def test_list_shows_types_shapes_statistics_and_layers_without_weights(file: Path) -> None:
    code, output = run(file, "--list")
    assert code == 0 and not Path(f"{file}.npz").exists()
    assert re.search(r"conv\.0 +Convolution +2x3x3x3 +float32 +0 / 26.5 / 53", output)
    assert "relu (ReLU)" in output and "BVLC Caffe's, or any" in output


def test_each_of_many_empty_blobs_costs_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich lays out the first rows alone; for each it calls some 2,500 functions."""
    monkeypatch.setattr(common, "LAID_OUT_ROWS", 10)

    def calls(count: int) -> int:
        made = 0

        def count_call(frame: FrameType, event: str, argument: object) -> None:
            nonlocal made
            made += event == "call"

        empty = message(7, message(7, integer(1, 0)))
        (tmp_path / "n.caffemodel").write_bytes(message(100, message(1, b"a") + message(2, b"ReLU") + empty * count))
        before = sys.getprofile()
        sys.setprofile(count_call)
        try:
            code, output = run(tmp_path / "n.caffemodel", "--list")
        finally:
            sys.setprofile(before)
        assert code == 0 and f"a.{count - 1}  ReLU  0  float32  empty" in output
        return made

    assert calls(11 + 50) - calls(11) < 100 * 50


def test_names_reach_no_terminal_as_they_are(tmp_path: Path) -> None:
    raw = message(7, message(1, bytes([3]))) + integer(10, 2) + message(12, np.array([1, np.nan, 3], "<f2").tobytes())
    full, bare = (message(100, message(1, b"a\x1b[31m") + message(2, b"T\x1b[5m") + more) for more in (message(7, raw), b""))
    (tmp_path / "n.caffemodel").write_bytes(message(1, b"") + full + bare)
    code, output = run(tmp_path / "n.caffemodel", "--list")
    assert code == 0 and "\x1b" not in output
    assert all(
        text in output for text in (r"a\x1b[31m.0", r"T\x1b[5m", r"NaN or infinite values in a\x1b[31m", "1 layers without")
    )


def test_nan_is_loud(tmp_path: Path) -> None:
    write_binaryproto(tmp_path / "m.binaryproto", np.array([1, np.nan, 2]))
    code, output = run(tmp_path / "m.binaryproto", "--list")
    assert code == 0 and "1 NaN" in output and "NaN or infinite values in data" in output


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_a_state(tmp_path: Path, suffix: str) -> None:
    if suffix == ".h5":
        require("hdf5")
    path = tmp_path / f"s.solverstate{suffix}"
    history = [np.ones((2, 3), np.float32)]
    write_state(path, TrainingState(7, "net.caffemodel", 2, history, minimum_loss=0.5, iter_last_event=3))
    dump = read(path)
    assert dump.kind == f".solverstate{suffix}"
    assert dump.arrays["iter"] == 7 and dump.arrays["history.0"].shape == (2, 3)
    assert dump.arrays["minimum_loss"] == 0.5 and dump.arrays["iter_last_event"] == 3
    assert run(path, "--list")[0] == 0


def test_any_hdf5_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as data:
        data["file"], data["deep/label"] = np.zeros((3, 2)), np.arange(3)
    assert run(tmp_path / "d.h5", "-o", tmp_path / "d.npz")[0] == 0
    with np.load(tmp_path / "d.npz") as arrays:
        assert sorted(arrays) == ["deep/label", "file"]


def test_a_name_that_stands_twice_and_half_floats(tmp_path: Path) -> None:
    raw = message(7, message(1, bytes([3]))) + integer(10, 2) + message(12, np.arange(3, dtype="<f2").tobytes())
    layer = message(100, message(1, b"a") + message(2, b"Bias") + message(7, raw))
    (tmp_path / "n.caffemodel").write_bytes(message(1, b"") + layer + layer)
    dump = read(tmp_path / "n.caffemodel")
    assert sorted(dump.arrays) == ["a#2.0", "a.0"] and dump.arrays["a.0"].dtype == np.float16
    assert dump.origin.forks == ("NVIDIA Caffe",)


def test_no_array_is_lost_where_names_collide_or_lead_elsewhere(tmp_path: Path) -> None:
    """Two layers a, of which the second becomes another a#N than the layer that is called a#2."""
    names = ["a", "a#2", "a", "../../up", "/root", "a\0b", "a\0c"]
    layers = []
    for i, name in enumerate(names):
        values = message(7, message(5, np.full(1, i, "<f4").tobytes()))
        layers.append(message(100, message(1, name.encode()) + message(2, b"Bias") + values))
    (tmp_path / "n.caffemodel").write_bytes(message(1, b"") + b"".join(layers))
    code, output = run(tmp_path / "n.caffemodel", "-o", tmp_path / "n.npz")
    assert (code, output) == (0, f"written: {tmp_path / 'n.npz'} (7 arrays)\n")
    found = {name: float(array.item()) for name, array in read_npz(tmp_path / "n.npz").items()}
    assert found == {"a.0": 0, "a#2.0": 1, "a#3.0": 2, "../../up.0": 3, "/root.0": 4, "a\0b.0": 5, "a\0c.0": 6}
    with np.load(tmp_path / "n.npz") as loaded:
        assert len({loaded[name].item() for name in loaded.files}) == 7
        assert "%2E%2E/%2E%2E/up.0" in loaded.files


def test_names_of_hdf5_that_lead_elsewhere(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.h5", "w") as data:
        for i, name in enumerate(("a", "../..", "a%")):
            data[f"g/{name}"] = [i]
    assert run(tmp_path / "d.h5", "-o", tmp_path / "d.npz") == (0, f"written: {tmp_path / 'd.npz'} (3 arrays)\n")
    assert sorted(read_npz(tmp_path / "d.npz")) == ["g/../..", "g/a", "g/a%"]


FLOAT_3 = b"\x0d\0\0\x40\x40"
PSROI = b"\x0d\0\0\x80\x3d" + integer(2, 21) + integer(3, 7)
BLOCK_OF = {
    "SmoothL1Loss": FLOAT_3, "SmoothL1LossOHEM": FLOAT_3, "PriorBox": FLOAT_3, "PSROIPooling": PSROI, "PSROIAlign": PSROI,
    "MultiBoxLoss": integer(1, 0), "AnnotatedData": message(2, b"labels"), "Swish": FLOAT_3,
    "Clip": FLOAT_3 + b"\x15\0\0\x80\x40",
    "SegAccuracy": integer(2, 1), "RegionLoss": integer(2, 6), "BN": message(1, b""),
    "BBoxReg": FLOAT_3, "BoxGroupOutput": FLOAT_3, "BoxOutput": FLOAT_3, "DecodeBBox": FLOAT_3,
    "DeformablePSROIPooling": PSROI, "FrcnnOutput": FLOAT_3, "ScaleRoute": FLOAT_3, "BboxAccuracy": FLOAT_3,
    "ProposalTarget": integer(2, 6), "FrcnnProposalTarget": integer(2, 6),
    "TripletLoss": FLOAT_3, "GeneralTriplet": FLOAT_3, "GeneralTripletLoss": FLOAT_3, "LabelSpecificAdd": FLOAT_3,
    "SeLu": FLOAT_3,
    "Correlation": integer(2, 6), "SpatialTransformer": message(1, b"affine"), "Mean": integer(1, 4), "FlowWarp": integer(1, 1),
    "DiceCoefLoss": integer(3, 1), "FocalLoss": integer(1, 1), "MultiStageMeanfield": integer(6, 10),
    "Warp": integer(1, 1), "CoeffSchedule": FLOAT_3, "Writer": message(1, b"folder"), "FLOWriter": message(1, b"folder"),
    "SqueezeDetLoss": integer(2, 3), "MergeCrop": integer(1, 1),
    **dict.fromkeys(
        ("Quantization", "ConvolutionRistretto", "DeconvolutionRistretto", "FcRistretto", "LRNRistretto"), integer(1, 1)
    ),
    **dict.fromkeys(("GeneralContrastive", "GeneralContrastiveLoss", "LabelSpecificRescale"), FLOAT_3),
    **dict.fromkeys(("ImageGtData", "DetectionData", "EvalData"), message(1, b"list.txt")),
    **dict.fromkeys(
        ("Augmentation", "DataAugmentation", "FlowAugmentation", "GenerateAugmentationParameters"), integer(5, 1000)
    ),
}  # fmt: skip
CLASHES = [
    (kind, name, number) for kind, (name, numbers) in BLOCKS.items() for number in numbers if (kind, number) != ("BN", 144)
]


def test_every_clashing_number(tmp_path: Path) -> None:
    """The weights are read, the fork is named, and the block arrives in the net where minicaffe has one of the name."""
    wrong = [case for case in CLASHES if not _is_read(*case, tmp_path / "f.caffemodel")]
    assert not wrong


def _is_read(kind: str, name: str, number: int, path: Path) -> bool:
    path.write_bytes(forked(kind, message(number, BLOCK_OF.get(kind, integer(1, 6)))))
    dump = read(path)
    layer = read_stored_net(path)[0].layer[0]
    return (
        dump.arrays["it.0"].tolist() == [[0, 1, 2], [3, 4, 5]]
        and dump.origin.forks == BLOCKS[kind][1][number]
        and any(f"{name} is field {number}" in str(evidence) for evidence in dump.origin.evidence)
        and (kind == "Proposal" or bool(getattr(layer, name).ListFields()))
    )


def test_bvlcs_own_fields_at_those_numbers_stay(tmp_path: Path) -> None:
    swish, clip = message(147, b"\x0d\0\0\x40\x40"), message(148, b"\x0d\0\0\x40\x40\x15\0\0\x80\x40")
    for kind, block, name in (("Swish", swish, "swish_param"), ("Clip", clip, "clip_param")):
        (tmp_path / "b.caffemodel").write_bytes(forked(kind, block))
        param, origin = read_stored_net(tmp_path / "b.caffemodel")
        assert not origin.evidence and getattr(param.layer[0], name).ListFields()


@pytest.mark.parametrize("number", NVIDIA_FIELDS)
def test_nvidias_integers(number: int, tmp_path: Path) -> None:
    (tmp_path / "n.caffemodel").write_bytes(forked("ReLU", integer(number, 1)))
    assert read(tmp_path / "n.caffemodel").origin.forks == ("NVIDIA Caffe",)
    assert read_stored_net(tmp_path / "n.caffemodel")[0].layer[0].type == "ReLU"


def test_fields_that_mean_different_things_are_said_to(tmp_path: Path) -> None:
    cases = [
        (message(108, integer(2, 2)), "engine in NVIDIA"), (message(121, integer(13, 1)), "avg_include_pad in Intel"),
        (message(101, integer(3, 3)), "PRE_FIXED in R-FCN"), (message(101, integer(3, 4)), "NONE there"),
        (message(101, b"\x25\0\0\x80\x3f"), "label_smoothing in NVIDIA"),
    ]  # fmt: skip
    for block, words in cases:
        (tmp_path / "f.caffemodel").write_bytes(forked("Dropout", block))
        assert words in run(tmp_path / "f.caffemodel", "--list")[1]


def test_a_number_is_read_as_its_fork_means_it(tmp_path: Path) -> None:
    microsoft = message(147, integer(1, 6)), message(101, integer(3, 3))
    (tmp_path / "m.caffemodel").write_bytes(forked("ROIPooling", *microsoft))
    layer = read_stored_net(tmp_path / "m.caffemodel")[0].layer[0]
    assert layer.roi_pooling_param.pooled_h == 6 and layer.loss_param.normalization == 4  # PRE_FIXED here


def test_a_pooling_method_that_differs_between_forks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.caffemodel").write_bytes(forked("Pooling", message(121, integer(1, 3))))
    with pytest.raises(WeightsError, match="pooling_param field 1 is pool 3, a value of another fork"):
        read_stored_net(tmp_path / "p.caffemodel")


def test_a_stored_c3d_net_is_refused(tmp_path: Path) -> None:
    """Its V1 number of CONVOLUTION3D is BVLC's ARGMAX, which has no blobs."""
    layer = message(4, b"conv1a") + integer(5, 30)
    (tmp_path / "argmax").write_bytes(message(2, layer))
    assert read_stored_net(tmp_path / "argmax")[0].layer[0].type == "ArgMax"
    (tmp_path / "c3d").write_bytes(message(2, layer + message(6, b"")))
    with pytest.raises(WeightsError, match=r"a 3-D convolution of C3D, .* give its prototxt"):
        read_stored_net(tmp_path / "c3d")


def test_errors(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-20])
    (tmp_path / "garbage").write_bytes(random.Random(3).randbytes(400))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text(NET)
    (tmp_path / "other").write_bytes(integer(3, 4))
    for name, words in [
        ("cut", "cut short, damaged"), ("garbage", "damaged, or no"), ("empty", "the file is empty"),
        ("text", "this is a prototxt"),
        ("other", "no layers, no training state and no blob"), ("missing", "no such file"),
    ]:  # fmt: skip
        code, output = run(tmp_path / name, "--list")
        assert code == 1 and words in output, name
    with pytest.raises(WeightsError, match="offset"):
        read(tmp_path / "cut")


def test_no_cut_off_or_damaged_file_gives_anything_but_a_weights_error(file: Path, tmp_path: Path) -> None:
    whole, rng = file.read_bytes(), random.Random(5)
    for i in range(60):
        data = bytearray(whole[: rng.randrange(1, len(whole))] if i % 2 else whole)
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "d").write_bytes(data)
        for function in (read, read_stored_net):
            with suppress(WeightsError):
                function(tmp_path / "d")
