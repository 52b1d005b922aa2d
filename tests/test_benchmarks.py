"""What the benchmarks of the CPU share: tables that are written row by row, pictures, nets, and who is left out."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from minicaffe import get_num_threads, kernels
from minicaffe.compiled import jit
from minicaffe.formats.prototxt import parse_net
from minicaffe.scaling.in_flight import CAN_FORK

ROOT = Path(__file__).parents[1]
TABLES = ["caffe", "conv", "deformable", "forks", "history", "load", "many", "nets", "roi", "scale", "train"]


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("_report", monkeypatch)


@pytest.fixture
def document(tmp_path: Path, report: ModuleType) -> Path:
    (tmp_path / "images").mkdir()
    path = tmp_path / "performance.md"
    begin, end = report.markers("some")
    path.write_text(f"before\n{begin}\nnot yet\n{end}\nafter\n")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "history.csv"


def some(report: ModuleType, *rows: Any) -> Any:
    table = report.Table("some", ("layer", "threads"), ("minicaffe", "peer", "other"), ("rois",))
    for keys, times, more in rows:
        table.add(report.Row(keys, times, more))
    return table


def test_a_table_has_times_and_ratios_to_ours(report: ModuleType, document: Path, log: Path) -> None:
    some(report, (("a", "1"), {"minicaffe": 0.002, "peer": 0.005}, ("7",))).write(document, log)
    text = document.read_text()
    assert "| layer | threads | minicaffe ms | peer | other | rois |" in text
    assert "| a | 1 | 2 | 5 (2.50) |  | 7 |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "not yet" not in text


def test_a_peer_has_a_ratio_to_each_of_ours(report: ModuleType) -> None:
    table = report.Table("some", ("net",), ("minicaffe", "minicaffe, fast", "peer"))
    assert table.heads() == ["net", "minicaffe ms", "minicaffe, fast", "peer"]
    assert table.cells(report.Row(("a",), {"minicaffe": 0.2, "minicaffe, fast": 0.1, "peer": 0.3})) == [
        "a",
        "200",
        "100",
        "300 (1.50 / 3.00)",
    ]
    assert table.cells(report.Row(("a",), {"minicaffe": 0.2, "peer": 0.3})) == ["a", "200", "", "300 (1.50)"]


def test_written_ratios_are_kept_in_the_history(report: ModuleType, document: Path, log: Path) -> None:
    """Each peer of each run has an entry, even if a later run has replaced the row in the document. A picture shows them."""
    table = report.Table("some", ("layer", "threads"), ("minicaffe", "minicaffe, fast", "peer", "other"))
    table.add(report.Row(("a, b", "2"), {"minicaffe": 0.2, "minicaffe, fast": 0.1, "peer": 0.3}))
    table.write(document, log)
    table.write(document, log)
    lines = log.read_text().splitlines()
    assert lines[0] == "date,commit,machine,threads,table,row,peer,plain,fast"
    assert len(lines) == 3
    assert lines[1].endswith(',2,some,"a, b",peer,1.5,3')
    picture = (document.parent / "images" / "benchmark_history.svg").read_text()
    assert "some: a, b, 2 threads" in picture
    assert "1.50, fast 3.00 (peer)" in picture


def test_a_table_without_peers_leaves_no_history(report: ModuleType, document: Path, log: Path) -> None:
    some(report, (("a", "1"), {"minicaffe": 0.002}, ("7",))).write(document, log)
    assert not (document.parent / "images" / "benchmark_history.svg").exists()


def test_a_slowdown_is_said_and_drawn(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    """More than a tenth below the best ratio of the same row, machine and way of loops."""
    history = module("_history", monkeypatch)

    def entry(commit: str, plain: float, fast: float | None = None, machine: str = "m", row: str = "net") -> Any:
        return history.Entry("2026-01-02", commit, machine, "1", "nets", row, "onnxruntime", plain, fast)

    entries = [entry("a", 1.0), entry("b", 2.0, 3.0), entry("a", 9.0, 9.0, "n"), entry("c", 1.7, 2.8), entry("c", 0.5, row="r")]
    history.append(log, entries[:2])
    history.append(log, entries[2:])
    assert history.read(log) == entries
    assert history.slowdowns(entries) == ["nets: net, 1 thread, beside onnxruntime: 1.70 at c, 2.00 at b"]
    root = ElementTree.fromstring(history.picture_of(entries))
    texts = [item.text for item in root if item.tag.endswith("text")]
    assert "1.70 \N{BLACK DOWN-POINTING TRIANGLE} 2.00, fast 2.80 (onnxruntime)" in texts
    assert "0.50 (onnxruntime)" in texts
    points = [item.attrib["points"].split() for item in root if item.tag.endswith("polyline")]
    assert [len(line) for line in points] == [3, 2, 1, 0]
    assert history.slowdowns([*entries, entry("d", 1.81, 2.8)]) == []
    elsewhere = entry("e", 0.25, machine="another")
    assert history.picture_of([*entries, elsewhere]) == history.picture_of(entries)  # the machine with the most commits


def test_the_history_of_the_repository_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    history = module("_history", monkeypatch)
    entries = history.read()
    assert len(entries) > 100
    assert ElementTree.fromstring(history.picture_of(entries)) is not None


def test_writing_again_replaces_rows_of_the_same_keys_and_keeps_the_others(
    report: ModuleType, document: Path, log: Path
) -> None:
    some(
        report,
        (("a", "1"), {"minicaffe": 0.002, "other": 1.2345}, ("7",)),
        (("a", "2"), {"minicaffe": 0.001}, ("8",)),
    ).write(document, log)
    some(report, (("a", "2"), {"minicaffe": 0.004, "peer": 0.003}, ("9",)), (("b", "1"), {"minicaffe": 1}, ("",))).write(
        document, log
    )
    lines = [line for line in document.read_text().splitlines() if line.startswith("|")][2:]
    assert lines == [
        "| a | 1 | 2 |  | 1234 (617.25) | 7 |",
        "| a | 2 | 4 | 3 (0.75) |  | 9 |",
        "| b | 1 | 1000 |  |  |  |",
    ]


def test_a_speedup_is_the_first_over_the_others(report: ModuleType) -> None:
    table = report.Table("some", ("net",), ("1 thread", "2 threads"), speedup=True)
    assert table.cells(report.Row(("a",), {"1 thread": 0.3, "2 threads": 0.2})) == ["a", "300", "200 (1.50)"]


def test_a_document_without_the_place_is_an_error(report: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("nothing")
    with pytest.raises(SystemExit, match="it lacks the lines"):
        some(report, (("a", "1"), {"minicaffe": 1.0}, ("",))).write(tmp_path / "other.md", tmp_path / "history.csv")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_place_in_the_document(report: ModuleType, name: str) -> None:
    begin, end = report.markers(name)
    assert report.between(report.PERFORMANCE, begin, end).strip()


def test_the_picture_has_a_bar_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = module("_picture", monkeypatch).bars
    svg = bars(["net", "mine ms", "theirs", "rois"], [["a & b", "200", "50 (0.25)", "x"], ["c", "1.5", "", "y"]], 1)
    root = ElementTree.fromstring(svg)
    widths = [float(item.attrib["width"]) for item in root if item.tag.endswith("rect")][1:]
    wide = max(widths)
    assert widths[:3] == [wide, wide / 4, wide]
    assert "a & b" in [item.text for item in root]


def test_contenders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    timing = module("_timing", monkeypatch)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: seen.append(f"({seconds})"))
    runs = {name: (lambda name=name: seen.append(name)) for name in "ab"}
    assert set(timing.interleaved(runs, least=3, most=3)) == {"a", "b"}
    assert "".join(seen) == "ab" + "(0.06)aa(0.06)bb" * 3  # short ones rest, and their first run is not measured
    seen.clear()
    monkeypatch.setattr(timing, "SHORT", 0)
    timing.interleaved(runs, least=3, most=3)
    assert "".join(seen) == "ab" * 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "count", "top"), [("vgg16", {}, 13, 512), ("resnet50", {"rfcn": True}, 53, 2048)])
def test_the_nets_are_vgg16_and_resnet50(
    monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, bool], count: int, top: int
) -> None:
    nets, text = module("_nets", monkeypatch), getattr(module("_architectures", monkeypatch), name)(**options)
    assert sum(layer.type == "Convolution" for layer in parse_net(text).param.layer) == count
    net = nets.random_net(text, (1, 3, 64, 96))
    (y,) = net.forward().values()
    assert y.shape == (1, top, 4, 6)
    assert 0.1 < y.std() < 10


def test_who_is_absent_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    contenders = module("_contenders", monkeypatch)
    for name in ("onnxruntime", "torch", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "benchmarks._torch", raising=False)
    net = module("_nets", monkeypatch).random_net(parse_text(), (1, 3, 8, 9))
    monkeypatch.setattr("minicaffe.compiled.jit.installed", lambda: None)
    assert list(contenders.contenders(net)) == ["minicaffe"]
    out = capsys.readouterr().out
    assert all(f"left out: {name}" in out for name in ("minicaffe, fast", "onnxruntime", "PyTorch", "OpenCV"))


def test_each_of_ours_makes_and_runs_its_own_in_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    contenders = module("_contenders", monkeypatch)
    made: list[bool] = []

    def make() -> dict[str, Any]:
        made.append(kernels.compiled())
        return {"made": lambda: made[-1], "runs": kernels.compiled}

    runs = contenders.both(make)
    assert made == [False, True]
    assert {name: run() for name, run in runs["runs"].items()} == {"minicaffe": False, "minicaffe, fast": True}
    net = module("_nets", monkeypatch).random_net(parse_text(), (1, 3, 8, 9))
    plain, fast = contenders.contenders(net, ()).values()
    assert plain()["y"] is not fast()["y"]
    contenders.check("net", {"minicaffe": plain, "minicaffe, fast": fast})


def test_opencv_5_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    contenders = module("_contenders", monkeypatch)
    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(__version__="5.0.0"))
    monkeypatch.setattr(contenders, "_printed", set())
    net = module("_nets", monkeypatch).random_net(parse_text(), (1, 3, 8, 9))
    assert "OpenCV" not in contenders.contenders(net, ("OpenCV",))
    assert 'OpenCV 5.0.0 reads no prototxt, 4 does: pip install "opencv-python-headless<5"' in capsys.readouterr().out


def parse_text() -> str:
    return (
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 9 } } }\n'
        'layer { name: "y" type: "Convolution" bottom: "data" top: "y" convolution_param { num_output: 4 kernel_size: 3 } }'
    )


def test_contenders_that_differ_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    check = module("_contenders", monkeypatch).check
    ours = {"minicaffe": lambda: {"y": np.float32([1, 2])}}
    check("net", {**ours, "peer": lambda: {"y": np.float32([1, 2.001])}})
    with pytest.raises(SystemExit, match=r"net, y: minicaffe and peer differ by 0\.5"):
        check("net", {**ours, "peer": lambda: {"y": np.float32([1, 3])}})


def test_rows_may_change_places_but_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = module("_contenders", monkeypatch)
    expected = np.arange(300, dtype=np.float32).reshape(1, 1, 100, 3)
    found = expected[:, :, ::-1].copy()
    contenders.same_rows("y", found, expected, 1e-3)
    found[:, :, :5] += 10
    contenders.same_rows("y", found, expected, 1e-3)
    found[:, :, 5, 2] += 10
    with pytest.raises(SystemExit, match="y have 94 of 100 rows in common"):
        contenders.same_rows("y", found, expected, 1e-3)
    contenders.nearly_all("y", expected[:, :, 1:2] + [[0, 0, 1e-3]], expected[:, :, 1:2], 1e-3)
    with pytest.raises(SystemExit, match=r"y agree in only 66\.7%"):
        contenders.nearly_all("y", expected[:, :, 1:2] + [[0, 0, 1]], expected[:, :, 1:2], 1e-3)


@pytest.mark.slow
def test_a_roi_row_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    roi, report = module("roi", monkeypatch), module("_report", monkeypatch)
    monkeypatch.setattr(roi, "SIZE", (5, 6))
    monkeypatch.setattr(roi, "torchvision", lambda *a: None)
    monkeypatch.setattr(roi, "interleaved", lambda runs, **more: {name: float(np.size(run())) for name, run in runs.items()})
    table = report.Table("roi", ("layer", "direction", "rois", "boxes", "threads"), ("minicaffe",))
    for case in (roi.CASES[0], roi.MORE[0]):
        roi.add(table, case, 3, "small")
    assert {"minicaffe", *(["minicaffe, fast"] if jit.installed() else [])} <= set(table.rows[0].times)
    assert [row.keys[1] for row in table.rows] == ["forward", "forward, with argmax", "backward", "forward", "backward"]


def test_the_command_sets_everyones_threads() -> None:
    code = (
        "import sys; sys.argv = ['benchmarks', 'none', '--threads', '2']\n"
        "import os; from benchmarks.__main__ import main; main()\n"
        "print({os.environ[name] for name in ('OMP_NUM_THREADS', 'MINICAFFE_NUM_THREADS')})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "{'2'}\n"


def test_scale_leaves_each_contender_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_num_threads()
    run = module("scale", monkeypatch).on_threads(lambda: {"threads": get_num_threads()}, before + 1)
    assert run() == {"threads": before + 1}


@pytest.mark.slow
@pytest.mark.skipif(not CAN_FORK, reason="no fork here")
def test_images_a_second_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    many = module("many", monkeypatch)
    at_once: list[int] = []

    def counted(detector: Any, images: int) -> int:
        at_once.append(min(get_num_threads(), images))
        return at_once[-1]

    def once(runs: Any, **_: object) -> dict[str, float]:
        return {name: len(run()) * seconds for (name, run), seconds in zip(runs.items(), (0.08, 0.1, 0.04), strict=True)}

    monkeypatch.setattr(many, "concurrent_images", counted)
    monkeypatch.setattr(many, "interleaved", once)
    many.main(["--images", "2", "--rows", "R-FCN of"])
    assert at_once == [2, 1, 2]
    assert "R-FCN of shapes | 2 | 80 | 100 (0.80) | 40 (2.00)\n" in capsys.readouterr().out


@pytest.mark.slow
def test_images_that_fail_end_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    many = module("many", monkeypatch)
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(SystemExit, match="cannot read the image"):
        many.measured(many.of_shapes("rfcn"), many.find_sources([str(tmp_path)]), 2)


def test_what_caffe_lacks_it_is_given_or_runs_as_python_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With BVLC's types, rois are an input, ROIPooling is roi.cpp's loop, and Dropout scales in TEST as py-R-FCN's."""
    caffe = module("caffe", monkeypatch)
    monkeypatch.setattr(caffe, "library", lambda: Path("roi.so"))
    text = """
        layer { name: "data" type: "Input" top: "data" top: "im_info"
                input_param { shape { dim: 1 dim: 2 dim: 16 dim: 16 } shape { dim: 1 dim: 3 } } }
        layer { name: "scores" type: "Convolution" bottom: "data" top: "scores"
                convolution_param { num_output: 18 kernel_size: 1 } }
        layer { name: "deltas" type: "Convolution" bottom: "data" top: "deltas"
                convolution_param { num_output: 36 kernel_size: 1 } }
        layer { name: "rois" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "im_info" top: "rois"
                python_param { param_str: "'feat_stride': 1" } }
        layer { name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool"
                roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
        layer { name: "drop" type: "Dropout" bottom: "pool" top: "pool"
                dropout_param { dropout_ratio: 0.3 scale_train: false } }
    """
    net = module("_nets", monkeypatch).random_net(text, (1, 2, 16, 16))
    param, given = caffe.for_caffe(net, {"Convolution", "Dropout", "Input", "Power", "Python", "Split"})
    layers = {layer.name: layer for layer in param.layer}
    assert set(given) == {"data", "im_info", "rois"}
    assert layers["rois"].type == "Input"
    assert list(layers["rois"].input_param.shape[0].dim) == list(net.blobs["rois"].shape)
    assert not layers["rois"].bottom
    assert (layers["pool"].type, layers["pool"].python_param.layer) == ("Python", "ROIPooling")
    sizes = json.loads(layers["pool"].python_param.param_str)
    assert sizes == {"pooled_h": 2, "pooled_w": 3, "spatial_scale": 0.5, "library": "roi.so"} | sizes
    assert (layers["drop"].type, layers["drop"].power_param.scale) == ("Power", pytest.approx(0.7))
    assert net.param.layer[-1].type == "Dropout"
    param, _ = caffe.for_caffe(net, {"ROIPooling", "Proposal"})
    assert [layer.type for layer in param.layer if layer.name in ("rois", "pool")] == ["Proposal", "ROIPooling"]


def test_a_python_without_caffe_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"imports no Caffe: .*caffe"):
        module("caffe", monkeypatch).types_of(sys.executable)
