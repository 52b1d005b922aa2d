"""Reading and writing files.

Every reader goes through opened(), which refuses pipes and devices; sizes are limited. Every writer goes through replacing(),
which writes a file completely or not at all.

Which files a prototxt, a list or a table may name: these are data, and may come from anyone.

    under the working directory              always
    what the command line names              always (a folder: everything in it)
    anything else                            after allow_path("/data"), or with --allow /data

A link counts as its target. A URI is allowed if its scheme, host (or bucket) and options are those of a URI that is allowed
or named on the command line. Paths that a caller passes to a function are not checked.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from urllib.parse import quote, unquote, unquote_to_bytes

from . import limits
from .errors import DataError, Error, LimitError, NotAFileError, memory_errors_as, os_errors_as, pasted, unread

LISTED = ("file", "s3", "gs", "gcs", "hdfs")
"""The schemes of URIs that lists and tables may name. Opening Azure's (abfs) runs the command az, or ends the process."""

_allowed: set[str] = set()


def allow_path(path: str | os.PathLike[str]) -> None:
    """Let prototxts, lists and tables name a file, or anything in a folder, for layers to read or write.

    Parameters
    ----------
    path : str or path
        The file, the folder, or a URI.
        A URI such as s3://bucket allows lists and tables every URI with its scheme, host and options.

    Notes
    -----
    The path need not exist, so a misspelt one is no error here. For the option `--allow` it is an error.
    """
    name = os.fspath(path)
    _allowed.add(_host(name) if is_remote(name) else os.path.realpath(local_path(name)))


def is_uri(name: str) -> bool:
    """Return whether a name has a scheme: s3://bucket/photos, file:///data."""
    return "://" in name


def is_remote(name: str) -> bool:
    """Return whether a name is a URI on another machine."""
    return is_uri(name) and not name.startswith("file:///")


def local_path(name: str) -> str:
    """Return the path of file:///my%20data; other names unchanged."""
    return unquote(name.removeprefix("file://")) if name.startswith("file:///") else name


def allowed() -> tuple[str, ...]:
    """Return everything allowed, including the working directory, so that another process can allow it."""
    return (os.path.realpath(os.getcwd()), *sorted(_allowed))


@contextmanager
def allowing(paths: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """Allow each of these paths until the end of the block, as allow_path does."""
    before = set(_allowed)
    for path in paths:
        allow_path(path)
    try:
        yield
    finally:
        _allowed.intersection_update(before)


def pattern_folder(name: str) -> str | None:
    """Return the folder before the first wildcard of a pattern such as photos/**/*.jpg; None for a name that is no pattern."""
    if is_uri(name) or not any(letter in name for letter in "*?[") or os.path.lexists(name):
        return None
    fixed = []
    for part in Path(name).parts:
        if any(letter in part for letter in "*?["):
            break
        fixed.append(part)
    return os.path.join(*fixed) if fixed else os.curdir


def granted(path: str | os.PathLike[str], *beside: str | os.PathLike[str], namer: str = "a prototxt") -> str:
    """Return path, as named by a prototxt (or another namer), if it is allowed or in a folder of beside. Raises DataError."""
    name = os.fspath(path)
    try:
        os.stat(name)  # raises for a loop of links or a name that is too long; realpath does not
    except FileNotFoundError:
        pass
    except ValueError:
        raise DataError(f"{name!r} is not a file's name") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise DataError(f"{name[:200]}: {error.strerror}") from error
    real = os.path.realpath(path)
    folders = [os.path.realpath(os.getcwd()), *_allowed, *map(os.path.realpath, beside)]
    if any(Path(real).is_relative_to(folder) for folder in folders):  # not by characters: /database is not in /data
        return name
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    leads = f" (which is {real})" if real != os.path.abspath(name) else ""
    raise DataError(
        f"{name}{leads} is not in the working directory {os.getcwd()}, and {namer} may name files elsewhere only where that"
        f" is allowed: --allow {pasted(folder, path=True)}, or minicaffe.allow_path({folder!r})"
    )


def granted_folder(path: str | os.PathLike[str], *beside: str | os.PathLike[str]) -> str:
    """Return the path of a folder if it and each of its entries, which may be links, are granted. Raises DataError."""
    name = granted(path, *beside)
    if os.path.isdir(name):
        with os.scandir(name) as entries:
            for entry in entries:
                granted(entry.path, *beside)
    return name


def granted_uri(uri: str) -> str:
    """Return the URI of another machine, as named by a list or a table, if it is allowed. Raises DataError.

    Its path is quoted, so that other parsers see the same host and options.
    """
    scheme = uri.partition("://")[0]
    if scheme not in LISTED:
        raise DataError(f"{uri}: a list or a table may name URIs of {', '.join(LISTED)}, not of {scheme}")
    host = _host(uri)
    if host not in _allowed:
        place = host.rstrip("?")
        raise DataError(
            f"{uri}: a list or a table may name URIs only where the command line names one of the same host and options, or"
            f' where that is allowed: --allow "{place}", or minicaffe.allow_path("{place}")'
        )
    start, _, options = host.partition("?")
    # Unquote first: a quoted path must not be quoted twice.
    path = quote(unquote_to_bytes(uri.partition("?")[0][len(start) :].encode("utf-8", "surrogateescape")))
    return f"{start}{path}{'?' * bool(options)}{options}"


def _host(uri: str) -> str:
    """Return s3://bucket?region=x for s3://bucket/photos/a.jpg?region=x."""
    place, _, options = uri.partition("?")
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}?{options}"


OTHERS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""Other kinds of files. Opening one may block, and reading it may never end."""


def opened(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Return a file, open for reading its bytes.

    A sparse file may have any size: call read_bytes to read it whole. follow: whether to follow links.

    Raises NotAFileError for a pipe, a socket, a device (none is opened), a link with follow=False, and an impossible name;
    OSError as open does.
    """
    name = os.fspath(path)
    # without O_NONBLOCK, opening a pipe would wait
    flags = ("O_NONBLOCK", "O_BINARY") if follow else ("O_NONBLOCK", "O_BINARY", "O_NOFOLLOW")
    try:
        _check_kind(os.stat(name, follow_symlinks=follow), name)
    except ValueError as error:  # the name contains a NUL
        raise NotAFileError(errno.EINVAL, f"no file has such a name ({error})", repr(name)) from error
    handle = os.open(name, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    try:
        _check_kind(os.fstat(handle), name)  # again: the name may refer to another file by now
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


class KeptOpen:
    """A file for `with KeptOpen(file) as file:` in a generator, which may be dropped in the middle of the block.

    The generator then closes the file, unless the garbage collector found both in one cycle. It finalises a cycle's objects in
    any order, and a file that comes first warns that it was not closed. Callbacks of weak references run before that.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        weakref.finalize(self, file.close).atexit = False  # at exit, a thread may still read

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()


def _check_kind(found: os.stat_result, name: str) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if kind != stat.S_IFREG:
        raise NotAFileError(errno.EINVAL, f"it is {OTHERS.get(kind, 'something else')}, not a file", name)


def read_bytes(path: str | os.PathLike[str], limit: str = "text") -> bytes:
    """Return a file's bytes.

    limit: the name in minicaffe.limits of its greatest size. Raises LimitError, and opened's errors.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        limits.check(f"{os.fspath(path)}: the file", size, limit)
        with memory_errors_as(LimitError, os.fspath(path), f"the file's {size:,} bytes", limits.refusing(limit)):
            data = file.read(size + 1)  # one byte more, to notice a file that has grown
            while size < len(data) <= getattr(limits, limit):  # files in /proc report size 0, and any file may grow
                if not (more := file.read(1 << 20)):
                    break
                data += more
    limits.check(f"{os.fspath(path)}: the file", len(data), limit)
    return data


def utf8(data: bytes, path: str | os.PathLike[str], kind: type[Error]) -> str:
    """Return the text of a file's bytes, like read_text. Raises an error of this kind with the file and the line."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        place = f"{os.fspath(path)}:{line}"
        raise kind(f"{place}: not a text file: save it as UTF-8 (byte 0x{data[error.start]:02x})") from error
    return _plain(text)


def read_text(path: str | os.PathLike[str], limit: str = "text", errors: str = "strict") -> str:
    """Return a file's UTF-8 text, without a byte order mark, with "\\n" at every line's end.

    Raises read_bytes's errors, and UnicodeDecodeError.
    """
    return _plain(read_bytes(path, limit).decode("utf-8", errors))


def _plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to path, with the same suffix, to write to.

    It is renamed to path at the end, or removed when the block fails.

    A reader of path sees the old file or the whole new one. The new file gets the old one's permissions and, if the system
    allows it, owner and group; until then only its owner can read it. A link's target is replaced, not the link; a device
    (/dev/stdout) or a pipe is written to. Raises Error, with path, for what the operating system refuses; the block's Errors
    that name the temporary path name path instead.
    """
    target = Path(path)
    if not target.name:
        raise Error(f'"{os.fspath(path)}" is not the name of a file to write')
    if _is_device(target):
        with _copied_to(target) as copy:
            yield copy
        return
    target = Path(os.path.realpath(target)) if target.is_symlink() else target
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    try:
        old = target.stat() if target.exists() else None
        if old:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL, 0o600))
        with _named(os.fspath(temporary), os.fspath(target)):
            yield temporary
        with open(temporary, "rb+") as file:  # Windows needs a writable file for fsync
            os.fsync(file.fileno())  # before the rename, or a crash could leave the name without the data
        if old:
            _take_permissions(temporary, old)
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        # the block failed on another file
        if error.filename and error.filename not in (os.fspath(temporary), os.fspath(target)):
            raise Error(plain(error)) from error
        raise Error(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def unlinked(path: str | os.PathLike[str], kind: type[Error] = Error) -> Path:
    """Return path, the name of an output that the program or a file chose.

    Raises an error of this kind for a link, which could lead to any file.
    """
    if os.path.islink(path):
        raise kind(f"{os.fspath(path)}: this is a link, and only an output that you name is written through one; remove it")
    return Path(path)


def in_place(path: str | os.PathLike[str], flags: int) -> int:
    """Return the descriptor of a file to write in place, opened with these flags of os.open.

    Raises unlinked's Error, also for a file that has other names, which would change with it; NotAFileError for a pipe and the
    like; OSError as os.open does.
    """
    name = unlinked(path)
    handle = os.open(name, flags | sum(getattr(os, flag, 0) for flag in ("O_NONBLOCK", "O_BINARY", "O_NOFOLLOW")), 0o666)
    try:
        found = os.fstat(handle)
        _check_kind(found, os.fspath(name))
        if found.st_nlink > 1:
            raise Error(f"{name}: this file has another name, too, and would change under both (a hard link); remove it here")
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def replacing_together(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path with the same name in a new folder next to path, to write to, with companion files next to it.

    At the end all are moved to path's folder, path last; when the block fails all are removed, and the old files stay. Raises
    replacing's errors.
    """
    target = Path(os.path.realpath(path) if os.path.islink(path) else path)
    beside = None if _is_device(target) else target.absolute().parent
    with os_errors_as(Error, f"{target}: cannot be written"):
        folder = tempfile.TemporaryDirectory(dir=beside, prefix=f".{target.stem}.")
    with folder:
        draft = Path(folder.name) / target.name
        with _named(f"{folder.name}{os.sep}", os.fspath(target)[: -len(target.name)]):
            yield draft
        # False sorts first: companions before the draft
        for file in sorted(draft.parent.iterdir(), key=lambda file: file == draft):
            place = target.with_name(file.name)
            with replacing(place if place == target else unlinked(place)) as temporary:
                if temporary.exists():
                    file.chmod(0o600)  # replacing() will give it the old file's permissions
                shutil.move(file, temporary)


@contextmanager
def _named(draft: str, target: str) -> Iterator[None]:
    """Let an Error of a writer in the block name the target in place of its draft."""
    try:
        yield
    except Error as error:
        error.args = tuple(arg.replace(draft, target) if isinstance(arg, str) else arg for arg in error.args)
        raise


def _take_permissions(file: Path, old: os.stat_result) -> None:
    """Give file another file's permissions and, if allowed, its owner and group.

    If the group cannot be set, the file's group gets the permissions of others.
    """
    mode = stat.S_IMODE(old.st_mode) & 0o777  # without setuid, setgid and sticky
    if hasattr(os, "chown"):
        for uid, gid in ((old.st_uid, -1), (-1, old.st_gid)):  # separately: often only the group may be changed
            with suppress(OSError):
                os.chown(file, uid, gid)
    if file.stat().st_gid != old.st_gid:
        mode &= 0o707 | (mode & 0o7) << 3
    file.chmod(mode)


def _is_device(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def _copied_to(target: Path) -> Iterator[Path]:
    """Yield a path in a temporary folder, which is copied to target at the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / target.name
        try:
            with open(Path(folder) / target.name, "rb") as source, open(target, "wb", buffering=0) as file:
                shutil.copyfileobj(source, file)
        except BrokenPipeError:  # `| head` has seen enough: the command line ends quietly
            raise
        except OSError as error:
            raise Error(f"{target}: cannot be written: {error.strerror or error}") from error


def plain(error: OSError) -> str:
    """Return `file: Permission denied`, without Python's [Errno 13]; for a missing file as unread."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str | bytes):
        return unread(os.fsdecode(error.filename), "", error)
    name = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{name}{error.strerror}" if error.strerror else str(error)


def _sync_folder(folder: Path) -> None:
    """Write a folder's new names to the disk, so that after a crash files exist in the order in which they were written."""
    with suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
