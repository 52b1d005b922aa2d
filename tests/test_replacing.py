"""Files that are replaced keep who may read them; what is on the way is read by nobody else."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from minicaffe import files
from minicaffe.errors import Error
from minicaffe.files import replacing, replacing_together

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize("old", [0o600, 0o755, 0o644, 0o664, 0o444, 0o400])
@pytest.mark.parametrize("write", [replacing, replacing_together])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, write: object, old: int) -> None:
    target = tmp_path / "target.txt"
    target.write_text("old")
    target.chmod(old)
    with write(target) as temporary:
        temporary.write_text("new")
        assert not mode(temporary if write is replacing else temporary.parent) & 0o077  # also while it is written
    assert (target.read_text(), oct(mode(target))) == ("new", oct(old))


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    for write in (replacing, replacing_together):
        with write(tmp_path / write.__name__) as temporary:
            temporary.write_text("new")
        assert oct(mode(tmp_path / write.__name__)) == oct(0o644)


def test_setuid_does_not_pass_to_other_content(tmp_path: Path) -> None:
    target = tmp_path / "program"
    target.write_text("old")
    target.chmod(0o4755)
    with replacing(target) as temporary:
        temporary.write_text("new")
    assert oct(mode(target)) == oct(0o755)


def test_the_mode_is_that_of_the_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink() and oct(mode(tmp_path / "file")) == oct(0o600)


def test_another_group_gets_no_more_than_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may not set the old file's group."""
    target = tmp_path / "file"
    target.write_text("old")
    target.chmod(0o664)

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refused)
    old = os.stat_result((0o100664, 0, 0, 1, os.getuid(), os.getgid() + 1, 3, 0, 0, 0))
    files._take_permissions(target, old)
    assert oct(mode(target)) == oct(0o644)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away")
def test_owner_and_group_stay(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    os.chown(target, 1234, 2345)
    with replacing(target) as temporary:
        temporary.write_text("new")
    assert (target.stat().st_uid, target.stat().st_gid) == (1234, 2345)


def test_nothing_written_is_an_error_and_the_old_file_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(Error, match="file: cannot be written"), replacing(tmp_path / "file") as temporary:
        temporary.unlink()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_what_is_unfinished_begins_with_a_dot_and_the_name(tmp_path: Path) -> None:
    """A killed process leaves such a file."""
    with replacing(tmp_path / "net.h5") as temporary:
        temporary.write_text("new")
        assert temporary.name.startswith(".net.") and temporary.suffix == ".h5"
        assert [path.name for path in tmp_path.iterdir()] == [temporary.name]
    with replacing_together(tmp_path / "net.onnx") as draft:
        draft.write_text("new")
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".net.")] == [draft.parent.name]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.h5", "net.onnx"]


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is on the way to it, and not another that is written at the same time."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Error) as error, replacing("a.txt") as a:
        raise Error(f"{a}: a name that it cannot hold")
    assert str(error.value) == "a.txt: a name that it cannot hold"
    with pytest.raises(Error) as error, replacing_together("b.txt") as b:
        raise Error(f"{b}: as {b.with_name('b.data')}")
    assert str(error.value) == "b.txt: as b.data"
    with pytest.raises(Error) as error, replacing("absent/a.txt") as a, replacing("b.txt"):
        a.write_text("new")
    assert str(error.value) == "absent/a.txt: no such file; there is no folder absent"
    with pytest.raises(Error) as error, replacing("absent/a.txt") as a:
        a.write_text("new")
    assert str(error.value) == "absent/a.txt: cannot be written: No such file or directory"
    assert not list(tmp_path.iterdir())
