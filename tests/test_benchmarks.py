"""What the benchmarks of the CPU share: tables that are written row by row, pictures, nets, and who is left out."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from minicaffe import get_num_threads, set_num_threads
from minicaffe.formats.prototxt import parse_net
from minicaffe.scaling.in_flight import CAN_FORK

ROOT = Path(__file__).parents[1]
TABLES = ["conv", "forks", "load", "nets", "roi", "scale", "train"]


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


def some(report: ModuleType, *rows: Any) -> Any:
    table = report.Table("some", ("layer", "threads"), ("minicaffe", "peer", "other"), ("rois",))
    for keys, times, more in rows:
        table.add(report.Row(keys, times, more))
    return table


def test_a_table_has_times_and_ratios_to_ours(report: ModuleType, document: Path) -> None:
    some(report, (("a", "1"), {"minicaffe": 0.002, "peer": 0.005}, ("7",))).write(document)
    text = document.read_text()
    assert "| layer | threads | minicaffe ms | peer | other | rois |" in text
    assert "| a | 1 | 2 | 5 (2.50) |  | 7 |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "not yet" not in text


def test_writing_again_replaces_rows_of_the_same_keys_and_keeps_the_others(report: ModuleType, document: Path) -> None:
    some(
        report,
        (("a", "1"), {"minicaffe": 0.002, "other": 1.2345}, ("7",)),
        (("a", "2"), {"minicaffe": 0.001}, ("8",)),
    ).write(document)
    some(report, (("a", "2"), {"minicaffe": 0.004, "peer": 0.003}, ("9",)), (("b", "1"), {"minicaffe": 1}, ("",))).write(
        document
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
        some(report, (("a", "1"), {"minicaffe": 1.0}, ("",))).write(tmp_path / "other.md")


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
    runs = {name: (lambda name=name: seen.append(name)) for name in "ab"}
    times = module("_timing", monkeypatch).interleaved(runs, least=3, most=3)
    assert "".join(seen) == "ab" * 4
    assert set(times) == {"a", "b"}


@pytest.mark.parametrize(("text", "count", "top"), [("vgg16", 13, 512), ("resnet50", 53, 2048)])
def test_the_nets_are_vgg16_and_resnet50(monkeypatch: pytest.MonkeyPatch, text: str, count: int, top: int) -> None:
    nets = module("_nets", monkeypatch)
    assert sum(layer.type == "Convolution" for layer in parse_net(getattr(nets, text)()).param.layer) == count
    net = nets.random_net(getattr(nets, text)(), (1, 3, 64, 96))
    (y,) = net.forward().values()
    assert y.shape == (1, top, 4, 6)
    assert 0.1 < y.std() < 10


def test_who_is_absent_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    contenders = module("_contenders", monkeypatch)
    for name in ("onnxruntime", "torch", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "benchmarks._torch", raising=False)
    net = module("_nets", monkeypatch).random_net(parse_text(), (1, 3, 8, 9))
    assert list(contenders.contenders(net)) == ["minicaffe"]
    out = capsys.readouterr().out
    assert all(f"left out: {name}" in out for name in ("onnxruntime", "PyTorch", "OpenCV"))


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


def test_a_roi_row_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    roi, report = module("roi", monkeypatch), module("_report", monkeypatch)
    monkeypatch.setattr(roi, "SIZE", (5, 6))
    monkeypatch.setattr(roi, "torchvision", lambda *a: None)
    monkeypatch.setattr(roi, "interleaved", lambda runs, **more: {name: float(np.size(run())) for name, run in runs.items()})
    table = report.Table("roi", ("layer", "direction", "rois", "boxes", "threads"), ("minicaffe",))
    for case in (roi.CASES[0], roi.MORE[0]):
        roi.add(table, case, 3, "small")
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
    set_num_threads(before)


@pytest.mark.skipif(not CAN_FORK, reason="no fork here")
def test_images_a_second_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    many = module("many", monkeypatch)
    at_once: list[int] = []

    def counted(detector: Any, images: int) -> int:
        at_once.append(min(get_num_threads(), images))
        return at_once[-1]

    def once(runs: Any, **_: object) -> dict[str, float]:
        return {name: len(run()) * seconds for (name, run), seconds in zip(runs.items(), (0.08, 0.1, 0.04), strict=True)}

    monkeypatch.setattr(many, "images_at_once", counted)
    monkeypatch.setattr(many, "interleaved", once)
    before = get_num_threads()
    try:
        many.main(["--images", "2", "--rows", "R-FCN of"])
    finally:
        set_num_threads(before)
    assert at_once == [2, 1, 2]
    assert "R-FCN of shapes | 2 | 80 | 100 (0.80) | 40 (2.00)\n" in capsys.readouterr().out


def test_images_that_fail_end_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    many = module("many", monkeypatch)
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    before = get_num_threads()
    try:
        with pytest.raises(SystemExit, match="cannot read the image"):
            many.measured(many.of_shapes("rfcn"), many.find_sources([str(tmp_path)]), 2)
    finally:
        set_num_threads(before)
