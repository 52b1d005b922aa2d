"""Detection on many images in one process: sources, rows, parts, resuming, the manifest, bad images, pyarrow's file systems."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detecting import ARGUMENTS, detect, finished, make_folder
from PIL import Image

from minicaffe.cli import main
from minicaffe.cli.pictures import concurrent_images
from minicaffe.detection.detect import Rcnn
from minicaffe.errors import Error, install
from minicaffe.scaling.batch import places
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.folder import Folder
from minicaffe.scaling.batch.recipe import Pipeline, Row
from minicaffe.scaling.batch.run import parts_to_do
from minicaffe.scaling.batch.sources import Files, Picture, Sources
from minicaffe.scaling.in_flight import CAN_FORK

pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
from pyarrow import fs  # noqa: E402


def names(images: Sources) -> list[str]:
    return list(images.names())


def test_rows_are_what_is_printed(folder: Path) -> None:
    printed = json.loads(detect("photos", "--json").stdout)
    result = detect("photos", "--out", "found")
    assert finished(result), result.output
    assert "found: 7 images in 1 part\n7 images in " in result.stdout
    assert "1 error, " in result.stdout
    last = result.stderr.splitlines()[-2:]
    assert last[0].startswith("minicaffe: photos/3.png: ") and last[1].startswith("minicaffe: 1 of 7 images failed")
    rows = pq.read_table("found").to_pylist()
    assert [row["index"] for row in rows] == list(range(7))
    assert [row["image"] for row in rows] == [f"photos/{i}.png" for i in range(7)]
    assert [(row["width"], row["height"]) for row in rows] == [
        (None, None) if i == 3 else (70 + i, 48 + 2 * i) for i in range(7)
    ]
    assert rows[3]["error"].startswith("cannot read the image: not an image, or damaged (supported: BMP, JPEG, ")
    assert rows[3]["scores"] == rows[3]["boxes"] == []
    good = [row for row in rows if row["error"] is None]
    assert [entry["image"] for entry in printed] == [row["image"] for row in good]
    for entry, row in zip(printed, good, strict=True):
        assert [item["class_index"] for item in entry["detections"]] == row["classes"]
        assert [item["class"] for item in entry["detections"]] == row["names"]
        np.testing.assert_allclose([item["score"] for item in entry["detections"]], row["scores"], atol=5e-5)
        np.testing.assert_allclose([item["box"] for item in entry["detections"]], row["boxes"], atol=0.051)
    assert sum(len(row["scores"]) for row in good) > 6


def test_parts_are_of_one_size_and_a_stopped_run_goes_on(folder: Path) -> None:
    assert finished(detect("photos", "--out", "found", "--part-size", 3))
    parts = sorted(path.name for path in Path("found").glob("*.parquet"))
    assert parts == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert [pq.read_metadata(f"found/{name}").num_rows for name in parts] == [3, 3, 1]
    whole = {name: (Path("found") / name).read_bytes() for name in parts}
    before = os.stat("found/part-00000.parquet").st_mtime_ns
    (Path("found") / parts[1]).unlink()
    (Path("found") / ".part-00001.1234.parquet").write_bytes(b"the half of one, of a run that was killed")
    again = detect("photos", "--out", "found", "--part-size", 3)
    assert "7 images in 3 parts, 2 of which were there" in again.stdout
    assert "\n3 images in " in again.stdout
    assert {name: (Path("found") / name).read_bytes() for name in parts} == whole
    assert os.stat("found/part-00000.parquet").st_mtime_ns == before
    first, rest = detect("photos", "--out", "found", "--part-size", 3).stdout.split("\n", 1)
    assert first == "found: 7 images in 3 parts, 3 of which were there"
    assert rest.startswith("1 failed image of an earlier run, in part-00001.parquet: remove") and rest.count("\n") == 1


@pytest.mark.parametrize("gone", [[], [1], [0, 2], [0, 1, 2, 3]])
def test_a_resumed_run_ends_as_the_whole_run(folder: Path, gone: list[int]) -> None:
    """The same names in the same order and the same status, though the kept parts hold some of the errors."""
    for i in (0, 4):
        Path(f"photos/{i}.png").write_bytes(b"no picture")
    whole = detect("photos", "--out", "found", "--part-size", 2)
    named = [line.split(": ")[1] for line in whole.stderr.splitlines()[1:-1]]  # the first says what was taken
    assert (whole.exit_code, named) == (1, ["photos/0.png", "photos/3.png", "photos/4.png"])
    for number in gone:
        Path(f"found/part-{number:05d}.parquet").unlink()
    again = detect("photos", "--out", "found", "--part-size", 2)
    assert (again.exit_code, again.stderr) == (1, whole.stderr)


def test_a_resumed_run_says_which_failures_are_kept_and_how_to_redo_them(folder: Path) -> None:
    good = Path("photos/0.png").read_bytes()
    Path("photos/0.png").write_bytes(b"no picture")
    first = detect("photos", "--out", "found", "--part-size", 2)
    assert "earlier run" not in first.output
    Path("photos/0.png").write_bytes(good)
    again = detect("photos", "--out", "found", "--part-size", 2)
    files = "part-00000.parquet, part-00001.parquet"
    said = (
        f"2 failed images of an earlier run, in {files}: remove these files from {folder}/found to process the images again\n"
    )
    assert again.stdout.endswith(said) and "photos/0.png" in again.stderr
    for name in files.split(", "):
        Path("found", name).unlink()
    redone = detect("photos", "--out", "found", "--part-size", 2)
    assert "earlier run" not in redone.output and "photos/0.png" not in redone.stderr and "photos/3.png" in redone.stderr


def test_a_resumed_run_counts_the_detections_of_kept_parts(folder: Path) -> None:
    """The best scores are 0.54 and 0.98; a part does not store that of an image without detections."""
    for threshold, ending in ((0.7, ""), (0.99, 'nothing reaches --threshold 0.99. Check the line "Preprocessing" above\n')):
        arguments = ["photos/0.png", "photos/1.png", "--part-size", 1, "--out", f"found{threshold}", "--threshold", threshold]
        assert ("nothing reaches" in detect(*arguments).stderr) == bool(ending)
        Path(f"found{threshold}/part-00000.parquet").unlink()
        again = detect(*arguments)
        taken, _, rest = again.stderr.partition("\n")
        assert (again.exit_code, taken.split()[0], rest) == (0, "Preprocessing:", ending)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["photos", "--part-size", 2], "images a part 100, here 2"),
        (["photos", "--threshold", 0.4], "threshold 0.05, here 0.4"),
        (["photos", "--nms", 0.5], "settings.test.nms 0.3, here 0.5"),
        (["photos/0.png", "photos"], "images 7, here 8; names of images"),
    ],
)
def test_another_runs_folder_is_refused(folder: Path, change: list[object], said: str) -> None:
    assert finished(detect("photos", "--out", "found"))
    result = detect(*change, "--out", "found")
    assert result.exit_code == 1
    assert f"{folder}/found: belongs to another run: {said}" in result.stderr
    assert result.stderr.endswith("Give another --out, or remove it\n")


def test_other_weights_are_another_run(folder: Path) -> None:
    assert finished(detect("photos", "--out", "found"))
    make_folder(folder, seed=2)
    assert "belongs to another run: weights " in detect("photos", "--out", "found").stderr


def test_settings_of_training_change_no_detection(folder: Path) -> None:
    assert finished(detect("photos", "--out", "found"))
    Path("trained.yml").write_text("TRAIN:\n  SCALES: [77]\n  BATCH_SIZE: 3\n")
    again = detect("photos", "--out", "found", "--cfg", "trained.yml")
    assert finished(again) and "7 images in 1 part, 1 of which were there" in again.stdout
    other = "TEST:\n  SCALES: [77]\n  MAX_SIZE: 99\n  NMS: 0.4\n  RPN_NMS_THRESH: 0.6\n  RPN_MIN_SIZE: 5\n"
    Path("other.yml").write_text(other)
    refused = detect("photos", "--out", "found", "--cfg", "other.yml").stderr
    assert refused.count(", here ") == 3 and "; and 1 more. Give another --out" in refused


def test_parquet_of_nobodys_is_left_alone(folder: Path) -> None:
    Path("found").mkdir()
    pq.write_table(pa.table({"a": [1]}), "found/part-00000.parquet")
    assert "has Parquet files that neither `minicaffe detect` nor `features` wrote" in detect("photos", "--out", "found").stderr
    assert pq.read_table("found").to_pylist() == [{"a": 1}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "found", "--draw", "drawn"], "--draw does nothing with --out"),
        (["--out", "found", "--json"], "--json does nothing with --out"),
        (["--out", "found", "--workers", 2], "--workers does nothing without --engine ray"),
        (["--engine", "ray"], "--engine does nothing without --out"),
        (["--part-size", 5], "--part-size does nothing without --out"),
        (["--out", "detector.prototxt"], "--out detector.prototxt: this is a file; give the name of a folder"),
        (["--out", "nothing://here"], "nothing://here: "),
        (["--out", "photos/"], "--out photos/: the images are in this folder: give another one"),
        (["--out", "./photos"], "--out ./photos: the images are in this folder: give another one"),
    ],
)
def test_options_that_do_not_go_together(folder: Path, arguments: list[object], said: str) -> None:
    result = detect("photos", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"minicaffe: {said}")


def test_a_run_without_one_good_image_fails(folder: Path) -> None:
    for _ in range(2):  # again with nothing left to do
        result = detect("photos/3.png", "photos/3.png", "--out", "found", "--part-size", 1)
        assert result.exit_code == 1
        assert "all 2 images failed: the column error has the reasons" in result.stderr
    assert pq.read_table("found")["error"].null_count == 0


def test_a_run_that_goes_on_with_bad_images_alone_is_finished(folder: Path) -> None:
    assert finished(detect("photos", "--out", "found", "--part-size", 3))
    Path("photos/6.png").write_bytes(b"no picture")
    Path("found/part-00002.parquet").unlink()
    result = detect("photos", "--out", "found", "--part-size", 3)
    assert finished(result), result.stderr
    assert pq.read_table("found")["error"].null_count == 5


def test_a_damaged_part_is_named(folder: Path) -> None:
    assert finished(detect("photos", "--out", "found"))
    Path("found/part-00000.parquet").write_bytes(b"PAR1 and no more")
    result = detect("photos", "--out", "found")
    assert result.exit_code == 1
    assert f"{folder}/found/part-00000.parquet: cannot be read: " in result.stderr
    assert result.stderr.endswith("; remove it, and run again to do its images\n")


def test_a_kept_part_counts_against_the_limits(folder: Path) -> None:
    """Before its names are decompressed: the folder may come from somebody else."""
    assert finished(detect("photos", "--out", "found"))
    rows = pq.read_table("found/part-00000.parquet").to_pylist()
    huge = pa.Table.from_pylist([{**row, "error": "e" * 2_000_000} for row in rows])
    pq.write_table(huge, "found/part-00000.parquet", use_dictionary=False, compression="zstd")
    result = detect("photos", "--out", "found", "--limit", "bytes=10000000")
    assert result.exit_code == 1
    assert re.search(r"part-00000\.parquet: cannot be read: error in row group 0 .*, and the limit is", result.stderr)


def test_lists_and_what_they_lack(folder: Path) -> None:
    Path("some.txt").write_text("photos/2.png\n\n photos/none.png \nphotos/0.png\n")
    result = detect("some.txt", "photos/1.png", "--out", "found")
    assert finished(result), result.output
    rows = pq.read_table("found").to_pylist()
    assert [row["image"] for row in rows] == ["photos/2.png", "photos/none.png", "photos/0.png", "photos/1.png"]
    assert rows[1]["error"] == "no such file; did you mean 6.png?"
    Path("empty.lst").write_text("\ufeff\n")
    assert "empty.lst: the list names no images" in detect("empty.lst", "--out", "other").stderr


def test_a_list_of_another_system(folder: Path) -> None:
    """Notepad's mark and line ends; a name with a character that str.splitlines takes for an end of a line."""
    name = "photos/a\u2028b.png"
    try:
        os.rename("photos/0.png", name)
    except OSError:
        pytest.skip("this file system does not take such a name")
    Path("some.txt").write_bytes(f"\ufeffphotos/2.png\r\n{name}\r\n".encode())
    images = find_sources(["some.txt"])
    assert names(images) == ["photos/2.png", name]
    assert all(isinstance(picture.data, Path) and picture.data.exists() for picture in images.pictures())


@pytest.mark.parametrize("source", ["photos", "list.txt", "t.parquet"])
def test_the_same_names_elsewhere_are_another_run(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A relative name means another image in another working directory; an absolute one does not."""
    Path("list.txt").write_text("photos/0.png\n")
    pq.write_table(pa.table({"bytes": [content("0.png")]}), "t.parquet")
    arguments = [*ARGUMENTS, "--out", str(folder / "found")]
    for i, word in enumerate(arguments[:-1]):
        arguments[i] = str(folder / word) if (folder / word).is_file() else word
    assert finished(CliRunner().invoke(main, [*arguments, source]))
    monkeypatch.chdir("/")
    absolute = CliRunner().invoke(main, [*arguments, str(folder / source)])
    (folder / "elsewhere").mkdir()
    for name in ("photos", "list.txt", "t.parquet"):
        (folder / "elsewhere" / name).symlink_to(folder / name)
    monkeypatch.chdir(folder / "elsewhere")
    result = CliRunner().invoke(main, [*arguments, source])
    assert "belongs to another run: names of images " in result.stderr
    assert result.exit_code == 1
    if source != "list.txt":  # whose lines are relative still
        assert finished(absolute), absolute.output
        assert "1 of which were there" in absolute.stdout


def test_a_name_that_is_no_text(folder: Path) -> None:
    try:
        os.rename("photos/0.png", b"photos/caf\xe9.png")
    except OSError:
        pytest.skip("this file system wants UTF-8")
    result = detect("photos", "--out", "found")
    assert finished(result), result.output
    assert pq.read_table("found")["image"][-1].as_py() == "photos/caf\\xe9.png"


def content(name: str) -> bytes:
    return Path("photos", name).read_bytes()


@pytest.mark.parametrize(
    ("columns", "called"),
    [
        ({"bytes": [0, 1, None, 3, 4]}, [f"t.parquet:{i}" for i in range(5)]),
        ({"bytes": [0, 1, None, 3, 4], "path": list("abcde")}, list("abcde")),
        ({"image": [0, 1, None, 3, 4], "label": [5] * 5}, [f"t.parquet:{i}" for i in range(5)]),
        ({"path": ["photos/0.png", "photos/1.png", "gone", "photos/3.png", "photos/4.png"]}, None),
    ],
)
def test_columns_of_parquet(folder: Path, columns: dict[str, list[object]], called: list[str] | None) -> None:
    made = {
        name: [content(f"{i}.png") if isinstance(i, int) else i for i in values] if name in ("bytes", "image") else values
        for name, values in columns.items()
    }
    pq.write_table(pa.table(made), "t.parquet", row_group_size=2)
    result = detect("t.parquet", "--out", "found", "--part-size", 2)
    assert finished(result), result.output
    rows = pq.read_table("found").to_pylist()
    assert [row["image"] for row in rows] == (called or columns["path"])
    assert [row["width"] for row in rows] == [70, 71, None, None, 74]
    assert [row["error"] is None for row in rows] == [True, True, False, False, True]


def test_images_of_the_datasets_library(folder: Path) -> None:
    pq.write_table(
        pa.table({"image": [{"bytes": content("1.png"), "path": "one"}, {"bytes": None, "path": None}]}), "t.parquet"
    )
    assert finished(detect("t.parquet", "--out", "found"))
    rows = pq.read_table("found").to_pylist()
    assert [(row["image"], row["width"]) for row in rows] == [("one", 71), ("t.parquet:1", None)]
    assert rows[1]["error"] == "the row has no image"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {"a": [1], "path": [2]},
            "no column bytes or image (binary) or path (string); its columns are a (int64), path (int64)",
        ),
        ({"bytes": pa.array([], pa.binary())}, "it has no rows"),
        (None, "cannot be read as Parquet"),
    ],
)
def test_parquet_without_images(folder: Path, table: dict[str, list[int]] | None, said: str) -> None:
    if table is None:
        Path("t.parquet").write_bytes(b"PAR1 and no more")
    else:
        pq.write_table(pa.table(table), "t.parquet")
    result = detect("t.parquet", "--out", "found")
    assert result.exit_code == 1
    assert f"t.parquet: {said}" in result.stderr


def test_a_damaged_row_group_loses_its_own_rows(folder: Path) -> None:
    pictures = [content("0.png"), content("1.png"), content("2.png")]
    pq.write_table(pa.table({"bytes": pictures}), "t.parquet", row_group_size=1, compression="zstd", use_dictionary=False)
    images = find_sources(["t.parquet"])
    group = pq.read_metadata("t.parquet").row_group(1).column(0)
    damaged = bytearray(Path("t.parquet").read_bytes())
    start = group.data_page_offset
    damaged[start : start + group.total_compressed_size] = b"\xff" * group.total_compressed_size
    Path("t.parquet").write_bytes(damaged)
    found = list(images.pictures())
    assert [picture.data for picture in found[::2]] == pictures[::2]
    assert str(found[1].data).startswith("t.parquet:1: cannot be read: ")
    pq.write_table(pa.table({"bytes": pictures[:2]}), "t.parquet")
    assert [str(picture.data) for picture in images.pictures()][2:] == [
        "t.parquet:2: cannot be read: the table has fewer rows than when the run began"
    ]


def test_cutting_gives_each_image_once() -> None:
    images = Sources((Files(tuple("abcde"), "/"), Files(("f",), "/"), Files(tuple("ghijklm"), "/")))
    for size in range(1, 15):
        parts = list(parts_to_do(images, size, ()))
        assert [name for part in parts for name in part.images.names()] == list("abcdefghijklm")
        assert [part.first for part in parts] == list(range(0, 13, size))
        assert all(len(part.images) == size for part in parts[:-1])
    assert [part.number for part in parts_to_do(images, 3, {0, 2, 4})] == [1, 3]
    assert names(images.cut(4, 8)) == list("efgh")


def test_uris_are_read_and_written(folder: Path) -> None:
    (folder / "photos").rename(folder / "my photos")
    uri = f"file://{folder}/my%20photos"
    assert finished(detect(uri, "--out", f"file://{folder}/there", "--part-size", 4))
    assert finished(detect("my photos", "--out", "here", "--part-size", 4))
    there, here = pq.read_table("there"), pq.read_table("here")
    assert there["image"].to_pylist() == [f"{uri}/{i}.png" for i in range(7)]
    assert there.drop_columns(["image", "error"]) == here.drop_columns(["image", "error"])
    assert [bool(error) for error in there["error"].to_pylist()] == [i == 3 for i in range(7)]
    assert not [path for path in Path("there").iterdir() if path.name.startswith(".")]
    assert "2 of which were there" in detect(uri, "--out", f"file://{folder}/there", "--part-size", 4).stdout
    assert f"file://{folder}/none: no such file" in detect(f"file://{folder}/none").stderr


def test_a_store_that_is_no_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any file system of pyarrow's, here one below a folder: what is left of a write that fails is nothing."""
    store = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())

    def located(name: str, base: str = "") -> tuple[fs.FileSystem, str]:
        return (store, name.removeprefix("store://")) if name.startswith("store://") else real(name, base)

    real = places.located
    for module in ("places", "folder"):
        monkeypatch.setattr(f"minicaffe.scaling.batch.{module}.located", located)
    for module in ("minicaffe.scaling.batch.find", "minicaffe.cli.detectors"):
        monkeypatch.setattr(f"{module}.check_opens", lambda _: None)
    places._folder.cache_clear()
    assert finished(detect("store://photos", "--out", "store://out/a"))
    rows = pq.read_table("out/a").to_pylist()
    assert [row["image"] for row in rows] == [f"store://photos/{i}.png" for i in range(7)]
    assert [row["width"] is None for row in rows] == [i == 3 for i in range(7)]

    class Failing(fs.SubTreeFileSystem):
        def move(self, *_: object) -> None:
            raise OSError("the connection was lost")

    target = Folder("store://out/a")
    (folder / "out" / "a" / "part-00000.parquet").unlink()
    monkeypatch.setattr(
        "minicaffe.scaling.batch.folder.located", lambda *_: (Failing(str(folder), fs.LocalFileSystem()), "out/a")
    )
    with pytest.raises(Error, match=r"part-00000\.parquet: cannot be written: the connection was lost"):
        target.write(0, pa.table({"a": [1]}))
    assert [path.name for path in (folder / "out" / "a").iterdir()] == ["_minicaffe.json"]


def test_a_file_where_parts_should_go(folder: Path) -> None:
    with pytest.raises(Error, match=r"photos/0\.png: cannot be written"):
        Folder(str(folder / "photos" / "0.png")).claim({})


def test_without_pyarrow_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    for arguments in (["photos", "--out", "found"], ["s3://bucket/photos"]):
        result = detect(*arguments)
        assert result.exit_code == 1
        assert result.stderr == f"minicaffe: Parquet and URIs need pyarrow: {install('parquet')}\n"
    assert finished(detect("photos/0.png"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "count"),
    [
        (signal.SIGINT, 130, 2),
        (signal.SIGTERM, 143, 1),
        pytest.param(signal.SIGINT, 130, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, 2, marks=pytest.mark.slow),
    ],
)
def test_a_stop_leaves_whole_parts(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int, count: int) -> None:
    real, here = Pipeline.row, os.getpid()

    def row(self: Pipeline, picture: Picture) -> Row:
        if picture.name == "photos/5.png":
            while not Path("found/part-00001.parquet").exists():  # of images before this one
                time.sleep(0.001)
            signal.raise_signal(number) if os.getpid() == here else os.kill(here, number)
            time.sleep(0.01)
        return real(self, picture)

    monkeypatch.setattr(Pipeline, "row", row)
    result = detect("photos", "--out", "found", "--part-size", 2, "--threads", count)
    assert result.exit_code == status
    assert result.stderr.splitlines()[1:] == ["stopped with 2 of 4 parts done; run the same command to continue"]
    parts = ["part-00000.parquet", "part-00001.parquet"]
    assert sorted(path.name for path in Path("found").iterdir()) == ["_minicaffe.json", *parts]
    assert active_children() == []
    monkeypatch.setattr(Pipeline, "row", real)
    assert "2 of which were there" in detect("photos", "--out", "found", "--part-size", 2, "--threads", count).stdout


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes computed, of each run in this process."""
    counts: list[int] = []

    def counted(detector: Pipeline, images: int) -> int:
        counts.append(concurrent_images(detector, images))
        return counts[-1]

    for module in ("detectors", "pictures"):
        monkeypatch.setattr(f"minicaffe.cli.{module}.concurrent_images", counted)
    return counts


@pytest.mark.slow
@pytest.mark.skipif(not CAN_FORK, reason="no fork here")
def test_several_concurrent_images_give_the_same_as_one_after_the_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: list[int]
) -> None:
    """Rows, lines, JSON and pictures, in the order of the images; also for the invalid one amid them."""
    runs = []
    for name in ("several", "one"):
        monkeypatch.setattr("minicaffe.cli.pictures.CAN_FORK", name == "several")
        printed = detect("photos", "--threads", 2, "--draw", f"drawn {name}")
        rows = detect("photos", "--threads", 2, "--out", f"found {name}", "--part-size", 3)
        as_json = detect("photos", "--threads", 2, "--json")
        assert (printed.exit_code, rows.exit_code, as_json.exit_code) == (1, 1, 1)
        assert printed.stderr.splitlines()[1].startswith(
            "minicaffe: photos/3.png: cannot read the image: not an image, or damaged"
        )
        lines = re.sub(r"in \d+\.\d+ s", "in 0 s", printed.stdout).replace(f"drawn {name}", "drawn")
        files = [path.read_bytes() for path in sorted(Path(f"drawn {name}").iterdir())]
        parts = [path.read_bytes() for path in sorted(Path(f"found {name}").glob("*.parquet"))]
        assert (lines.count("drawn: "), len(files), len(parts)) == (6, 6, 3)
        runs.append((lines, printed.stderr, as_json.stdout, as_json.stderr, files, parts))
    assert runs[0] == runs[1]
    assert at_once == [2, 2, 2, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.skipif(not CAN_FORK, reason="no fork here")
def test_a_picture_that_cannot_be_drawn_is_the_error_of_the_run(folder: Path) -> None:
    Path("drawn").mkdir()
    Path("drawn/2.png").mkdir()
    results = [detect("photos", "--threads", count, "--draw", "drawn") for count in (1, 2)]
    assert [result.exit_code for result in results] == [1, 1]
    assert results[0].stderr == results[1].stderr
    assert "drawn/2.png" in results[0].stderr
    assert all("photos/1.png: " in result.stdout and "photos/2.png: " not in result.stdout for result in results)


def test_whatever_goes_wrong_with_an_image_is_in_its_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object, **__: object) -> None:
        raise MemoryError("200 GB")

    monkeypatch.setattr(Rcnn, "find", find)
    assert detect("photos/0.png", "photos/3.png", "--out", "found").exit_code == 1
    errors = pq.read_table("found")["error"].to_pylist()
    assert errors[0] == "MemoryError: 200 GB"
    assert errors[1].startswith("cannot read the image: not an image, or damaged")


def test_a_limit_counts_for_each_image(folder: Path) -> None:
    Image.new("RGB", (200, 300)).save("photos/big.png")
    assert finished(detect("photos", "--out", "found", "--limit", "pixels=50000"))
    errors = pq.read_table("found")["error"].to_pylist()
    assert errors[-1].startswith("the image has 60,000 pixels, and the limit is 50,000")
    assert [bool(error) for error in errors] == [i in (3, 7) for i in range(8)]
