"""The folder that a run writes, a path or a URI: part-00000.parquet and so on, and a manifest that says whose they are.

A part is there whole or not at all, so that a run goes on where it stopped: what is there is done. A folder of another run
(other images, net, weights, settings or sizes of parts) is refused.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicaffe.access import is_uri
from minicaffe.errors import Error
from minicaffe.files import replacing

from .places import inside, located, pyarrow_errors, require_pyarrow

MANIFEST = "_minicaffe.json"
"""Readers of Parquet folders pass over names with a "_" or a "." before them."""

_PART = re.compile(r"part-(\d{5,})\.parquet")


@dataclass(frozen=True)
class Folder:
    """An output folder; place is a URI, or a path that is absolute."""

    place: str

    def claim(self, manifest: Mapping[str, Any]) -> set[int]:
        """Make it this run's, and return the parts that are done. Raises Error where it is another's."""
        system, path = located(self.place)
        fs = require_pyarrow().fs
        try:
            system.create_dir(path, recursive=True)
            found = [info.base_name for info in system.get_file_info(fs.FileSelector(path)) if info.type == fs.FileType.File]
        except pyarrow_errors() as error:
            raise Error(f"{self.place}: cannot be written: {error}") from error
        done = {int(match[1]) for name in found if (match := _PART.fullmatch(name))}
        if MANIFEST in found:
            self.check(manifest)
        elif any(name.endswith(".parquet") for name in found):
            raise Error(f"{self.place}: holds Parquet files that no run of `minicaffe detect` wrote: give another --out")
        else:
            self._put(MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
            self.check(manifest)
        return done

    def check(self, manifest: Mapping[str, Any]) -> None:
        """Raises Error where the folder is another run's."""
        system, path = located(self.place)
        self._compare(manifest, self._read(system, f"{path}/{MANIFEST}"))

    def done(self) -> set[int]:
        """The numbers of the parts that are there."""
        system, path = located(self.place)
        found = system.get_file_info(require_pyarrow().fs.FileSelector(path))
        return {int(match[1]) for info in found if (match := _PART.fullmatch(info.base_name))}

    def has_result(self, number: int) -> bool:
        """Whether an image of this part could be done. Raises Error where its file cannot be read."""
        system, path = located(self.place)
        pa = require_pyarrow()
        name = f"part-{number:05d}.parquet"
        try:
            with system.open_input_file(f"{path}/{name}") as file:
                return bool(pa.parquet.read_table(file, columns=["error"])["error"].null_count)
        except pyarrow_errors() as error:
            raise Error(f"{inside(self.place, name)}: cannot be read: {error}") from error

    def write(self, number: int, table: Any) -> None:
        """A part's file, in place of the one there is. Raises Error."""
        pa = require_pyarrow()
        content = pa.BufferOutputStream()
        pa.parquet.write_table(table, content)
        self._put(f"part-{number:05d}.parquet", content.getvalue())

    def _put(self, name: str, content: Any) -> None:
        if not is_uri(self.place):
            with replacing(Path(self.place) / name) as temporary:
                temporary.write_bytes(content)
            return
        system, path = located(self.place)
        temporary_name = f"{path}/.{name}.{secrets.token_hex(4)}"
        try:
            with system.open_output_stream(temporary_name) as stream:
                stream.write(content)
            system.move(temporary_name, f"{path}/{name}")
        except pyarrow_errors() as error:
            with suppress(*pyarrow_errors()):
                system.delete_file(temporary_name)
            raise Error(f"{inside(self.place, name)}: cannot be written: {error}") from error

    def _read(self, system: Any, path: str) -> Any:
        try:
            with system.open_input_file(path) as file:
                found = json.loads(file.read())
        except pyarrow_errors() as error:
            raise Error(f"{self.place}: {MANIFEST} cannot be read: {error}") from error
        return found if isinstance(found, dict) else {}

    def _compare(self, mine: Mapping[str, Any], other: Mapping[str, Any]) -> None:
        apart = [key for key in mine if mine[key] != other.get(key)]
        if apart:
            said = "; ".join(f"{key} {_short(other.get(key))}, here {_short(mine[key])}" for key in apart)
            raise Error(f"{self.place}: belongs to another run: {said}. Give another --out, or remove it")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text
