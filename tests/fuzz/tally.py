"""How much each reader was fuzzed in all: seconds of processor time, inputs and findings, added up in a JSON file.

    {"npy": {"seconds": 90, "inputs": 1370113, "found": 0}, ...}

Write the table in docs/reliability.md anew from it: python tests/fuzz/tally.py
Add other tallies to it first: python tests/fuzz/tally.py OTHER.json...
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

Tally = dict[str, dict[str, int]]

HERE = Path(__file__).resolve().parent
TALLY = HERE / "tally.json"
PAGE = HERE.parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- fuzzing -->\n\n", "\n\n<!-- end of fuzzing -->"

READERS = {
    "prototxt": "net prototxts",
    "net": "nets made from prototxts",
    "solver": "solver prototxts",
    "caffemodel": "`.caffemodel`",
    "hdf5": "`.caffemodel.h5`",
    "safetensors": "weights in `.safetensors`",
    "npz_weights": "weights in `.npz`",
    "solverstate": "`.solverstate`",
    "solverstate_hdf5": "`.solverstate.h5`",
    "binaryproto": "`.binaryproto`",
    "datum": "records of databases",
    "lmdb": "whole LMDBs",
    "leveldb": "whole LevelDBs",
    "parquet": "Parquet files of images",
    "param_str": "`param_str`",
    "image": "images",
    "tiff": "TIFFs",
    "npy": "`.npy`",
    "npz": "`.npz`",
    "settings": "`--cfg` settings",
    "annotations": "annotations in JSON, also COCO's",
    "voc": "annotations of PASCAL VOC",
    "image_list": "image lists",
    "window_file": "window files",
    "log": "training logs",
    "terminal": "no reader: names, as they are printed",
}
"""What the table calls each target."""


def read(path: Path) -> Tally:
    """The tally in a file; empty where there is none yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def add(path: Path, name: str, seconds: int, inputs: int, found: int) -> None:
    """Add one run of a reader to the file."""
    tally = read(path)
    sums = tally.setdefault(name, {"seconds": 0, "inputs": 0, "found": 0})
    for key, number in (("seconds", seconds), ("inputs", inputs), ("found", found)):
        sums[key] += number
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(tally, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)


def short_of(tally: Tally, names: list[str], seconds: int) -> list[str]:
    """The readers that were fuzzed for less than so many seconds, those first that were least."""
    had = {name: tally.get(name, {}).get("seconds", 0) for name in names}
    return sorted((name for name in names if had[name] < seconds), key=had.__getitem__)


def table(tally: Tally) -> str:
    """Markdown: a row for each reader that was fuzzed."""
    rows = [
        f"| {what} (`{name}`) | {tally[name]['seconds']:,} | {tally[name]['inputs']:,} | {tally[name]['found'] or 'nothing'} |"
        for name, what in READERS.items()
        if name in tally
    ]
    return "\n".join(["| reader | seconds | inputs | findings |", "|---|---|---|---|", *rows])


def with_table(page: str, tally: Tally) -> str:
    """The page with the table between its two marks written anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"the page lacks {BEGIN.strip()} or {END.strip()}"
    return before + begin + table(tally) + end + after


def main(others: list[str]) -> None:
    for other in others:
        for name, sums in read(Path(other)).items():
            add(TALLY, name, **sums)
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), read(TALLY)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
