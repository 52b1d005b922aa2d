"""What lists, tables and links may name for `detect`: files in the working directory and in what the command line names, and
URIs of its hosts; and a file system that ends the process that opens it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import detecting
import pytest
from click.testing import Result
from detecting import finished, make_folder

from minicaffe import allow_path, files
from minicaffe.errors import DataError, Error
from minicaffe.files import granted_uri
from minicaffe.scaling.batch import places
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.places import check_opens

pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images outside the working directory, which has a detector."""
    monkeypatch.setattr(files, "_allowed", set())
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    make_folder(inside)
    (inside / "photos").rename(outside)
    (inside / "photos").mkdir()
    monkeypatch.chdir(inside)
    return outside


def detect(*arguments: object) -> Result:
    return detecting.detect(*arguments, "--out", "found")


def errors() -> list[str | None]:
    rows: list[str | None] = pq.read_table("found")["error"].to_pylist()
    return rows


def a_list(names: list[str]) -> str:
    Path("list.txt").write_text("\n".join(names))
    return "list.txt"


def a_table(names: list[str]) -> str:
    pq.write_table(pa.table({"path": names}), "table.parquet")
    return "table.parquet"


@pytest.mark.parametrize("source", [a_list, a_table])
def test_lists_and_tables_name_no_file_elsewhere(outside: Path, source: Any) -> None:
    Path("link.png").symlink_to(outside / "1.png")
    Path("here.png").write_bytes((outside / "2.png").read_bytes())
    names = [str(outside / "0.png"), "link.png", "../outside/2.png", f"file://{outside}/%34.png", "here.png"]
    assert finished(detect(source(names)))
    assert [error and error.partition(" is not in the working directory")[0] for error in errors()] == [
        str(outside / "0.png"),
        f"{Path.cwd()}/link.png (which is {outside}/1.png)",
        f"{Path.cwd()}/../outside/2.png",
        str(outside / "4.png"),
        None,
    ]
    assert (errors()[0] or "").endswith(f'a list, table or link may name files elsewhere only where that is allowed: --allow '
                                        f'{outside}, or minicaffe.allow_path({str(outside)!r})')  # fmt: skip
    for more in (["--allow", outside], [outside / "0.png", outside]):  # allowed, or named beside it
        Path("found/part-00000.parquet").unlink()
        Path("found/_minicaffe.json").unlink()
        assert finished(detect(source(names), *more))
        assert errors()[:5] == [None] * 5


def test_a_link_in_a_folder_leads_nowhere_else(outside: Path) -> None:
    Path("photos/0.png").symlink_to(outside / "0.png")
    assert detect("photos").exit_code == 1
    assert "0.png (which is " in (errors()[0] or "")
    Path("tables").mkdir()
    (outside / "table.parquet").symlink_to(Path(a_table(["photos/0.png"])).absolute())
    Path("tables/a.parquet").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match=r"tables/a\.parquet \(which is /etc/hostname\) is not in"):
        find_sources(["tables"])


def test_the_links_of_a_folder_named_from_elsewhere(outside: Path) -> None:
    """What the command line names is a folder, everything in it; not what its links lead to."""
    (outside / "link.png").symlink_to("/etc/hostname")
    assert finished(detect(outside))
    assert [i for i, error in enumerate(errors()) if error and "is not in the working directory" in error] == [7]


def test_uris_of_hosts_that_the_command_line_names(outside: Path) -> None:
    uri = "s3://bucket/photos/a b%23c#1.png"
    with pytest.raises(DataError, match=r'names one of the same host and options.*--allow "s3://bucket", or minicaffe'):
        granted_uri(uri)
    allow_path("s3://bucket/list.txt")
    assert granted_uri(uri) == "s3://bucket/photos/a%20b%23c%231.png"
    assert granted_uri("s3://bucket") == "s3://bucket"
    for other in (
        "s3://bucket2/a.png",
        "s3://bucket@evil/a.png",
        "s3://bucket:80/a.png",
        "s3://key:secret@bucket/a.png",
        "s3://bucket/a.png?endpoint_override=evil.com",
        "s3://bucket?endpoint_override=evil.com",
        "s3://bucket\\@evil/a.png",
        "gs://bucket/a.png",
        "file://bucket/a.png",
    ):
        with pytest.raises(DataError, match="names one of the same host and options"):
            granted_uri(other)
    allow_path("s3://minio/lists?endpoint_override=localhost:9000&scheme=http")
    assert granted_uri("s3://minio/a.png?endpoint_override=localhost:9000&scheme=http") == (
        "s3://minio/a.png?endpoint_override=localhost:9000&scheme=http"
    )
    with pytest.raises(DataError, match="same host and options"):
        granted_uri("s3://minio/a.png")  # Amazon's own


@pytest.mark.parametrize("uri", ["abfs://c@account/a.png", "abfss://a/b", "hf://datasets/a", "S3://bucket/a", "http://host/a"])
def test_schemes_that_no_list_may_name(outside: Path, uri: str) -> None:
    allow_path(uri)
    with pytest.raises(DataError, match="a list or a table may name URIs of file, s3, gs, gcs, hdfs, not of "):
        granted_uri(uri)


@pytest.mark.parametrize("source", [a_list, a_table])
def test_a_uri_of_another_host_is_not_opened(outside: Path, monkeypatch: pytest.MonkeyPatch, source: Any) -> None:
    opened: list[str] = []
    monkeypatch.setattr(places, "located", lambda name, base="": opened.append(name))
    monkeypatch.setattr("minicaffe.scaling.batch.sources.read_uri", lambda name, most: opened.append(name))
    names = ["s3://bucket/a.png?endpoint_override=evil.com", "abfs://c@account/a.png", "gs://bucket/a.png"]
    found = [str(picture.data) for picture in find_sources([source(names)]).pictures()]
    assert not opened
    assert [text.partition(":")[0] for text in found] == ["s3", "abfs", "gs"]
    files.allow_path("gs://bucket")
    assert [picture.data for picture in find_sources([source(names)]).pictures()][2] is None
    assert opened == ["gs://bucket/a.png"]


def test_the_command_line_allows_uris(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []
    monkeypatch.setattr("minicaffe.cli.detect.find_sources", lambda *_: seen.append(files.allowed()) or find_sources(["x"]))
    detect("s3://bucket/list.txt?region=eu", "--allow", "gs://other")
    assert {"s3://bucket?region=eu", "gs://other?"} < set(seen[0])
    assert files.allowed() == (os.getcwd(),)


def test_a_file_system_that_ends_its_process(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "PROBE", "import os; os.abort()")
    ended = "store://a: cannot be opened: pyarrow's file system ended the process (SIGABRT)"
    with pytest.raises(Error) as caught:
        check_opens("store://a")
    assert str(caught.value) == ended
    for result in (detect("store://a"), detecting.detect("photos", "--out", "store://a")):
        assert result.exit_code == 1
        assert ended in result.stderr
    monkeypatch.setattr(places, "PROBE", "import time; time.sleep(100)")
    monkeypatch.setattr(places, "PATIENCE", 0.1)
    with pytest.raises(Error, match=r"^store://a: no answer within 0\.1 s$"):
        check_opens("store://a")


@pytest.mark.slow
def test_what_pyarrow_says_of_a_uri(outside: Path) -> None:
    """Asked in a process that imports nothing from the working directory."""
    Path("pyarrow.py").write_text("raise SystemExit('mine')")
    with pytest.raises(Error, match=r"^store://a: Unrecognized filesystem type in URI: store://a$"):
        check_opens("store://a")
    check_opens("mock:///a")
    check_opens("file:///nothing")
