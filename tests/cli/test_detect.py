"""minicaffe detect on a clips: each frame is an image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from minicaffe.cli import main
from minicaffe.data import clips
from minicaffe.data.image_bytes import Pixels

av = pytest.importorskip("av", reason="PyAV (the extra clips) is not installed")
SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
NET = [SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel"]
OPTIONS = ["--cfg", SHAPES / "shapes.yml", "--classes", SHAPES / "classes.txt"]


def detect(*words: object) -> str:
    done = CliRunner().invoke(main, ["detect", *map(str, [*NET, *words, *OPTIONS])])
    assert done.exit_code == 0, done.output
    return done.stdout


def written(path: Path, count: int) -> None:
    """A clips of the scene, without loss."""
    scene = Image.open(SHAPES / "scene.png").convert("RGB")
    with av.open(path, "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = *scene.size, "bgr0"
        for _ in range(count):
            container.mux(stream.encode(av.VideoFrame.from_image(scene)))
        container.mux(stream.encode())


def test_detect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("scene.mkv"), 3)
    found = json.loads(detect("scene.mkv", "--every", "2", "--json", "--draw", "drawn", "--save", "boxes.csv"))
    assert [one["image"] for one in found] == ["scene.mkv/000000", "scene.mkv/000002"]
    still = json.loads(detect(SHAPES / "scene.png", "--json"))[0]["detections"]
    for one in found:
        assert one["detections"] == still
    assert sorted(path.name for path in Path("drawn").iterdir()) == ["000000.png", "000002.png"]
    rows = csv.DictReader(Path("boxes.csv").read_text().splitlines())
    assert {row["image"] for row in rows} == {one["image"] for one in found}


@pytest.mark.slow
def test_parts_in_a_row_decode_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow.parquet", reason="pyarrow (the extra parquet) is not installed")
    monkeypatch.chdir(tmp_path)
    written(Path("scene.mkv"), 5)
    decoded: list[range] = []

    def read_frames(path: str, start: int, stop: int, step: int) -> Iterator[Pixels]:
        decoded.append(range(start, stop, step))
        return clips.read_frames(path, start, stop, step)

    monkeypatch.setattr("minicaffe.scaling.batch.sources.read_frames", read_frames)
    detect("scene.mkv", "--out", "parts", "--part-size", "2")
    assert decoded == [range(5)] and len(list(Path("parts").glob("*.parquet"))) == 3
    Path("parts/part-00001.parquet").unlink()
    detect("scene.mkv", "--out", "parts", "--part-size", "2")
    assert decoded[1:] == [range(2, 4)]
