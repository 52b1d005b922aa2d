"""The field numbers of forks: fork_blocks.tsv and fork_fields.tsv hold the published ones, once more."""

from __future__ import annotations

import csv
from pathlib import Path

from recordings import SHARED, needs

from minicaffe.formats import fork_numbers
from minicaffe.formats.fork_numbers import NUMBERS, OURS
from minicaffe.formats.forks import forks
from minicaffe.proto import caffe_pb2

FACTS = SHARED / "schema" / "fork_fields.tsv"
OWN_NUMBERS = 90_000
"""Where the schema's own choices begin: fields whose published number belongs to another field."""
OWN_CHOICES = {"FocalLossParameter.axis", "FocalLossParameter.engine"}
"""Those below: two forks' messages of one name joined."""
SCHEMA = caffe_pb2.DESCRIPTOR.message_types_by_name
REPOSITORIES = {
    "NVIDIA Caffe": "NVIDIA/caffe",
    "NVIDIA Caffe 0.15": "NVIDIA/caffe15",
    "ChWick's Caffe (ctc-dev)": "ChWick/ctc",
    "SpatialTransformerLayer": "daerduoCarey/SpatialTransformerLayer",
}


def pinned(name: str) -> dict[str, dict[str, int]]:
    """The numbers of the fields that each row of a table here lists."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return {
        key: {field: int(number) for field, _, number in (one.partition("=") for one in rest.split())} for key, rest in rows
    }


def published() -> dict[str, dict[tuple[str, str], int]]:
    """By repository the numbers of messages' fields."""
    found: dict[str, dict[tuple[str, str], int]] = {}
    for row in csv.DictReader(FACTS.read_text(encoding="utf-8").splitlines(), delimiter="\t"):
        if row["number"].isdigit():
            repository = row["fork"].replace("+", "/", 1).split(":")[0]
            found.setdefault(repository, {})[row["message"], row["field"]] = int(row["number"])
    return found


def test_each_forks_numbers_of_blocks() -> None:
    ours: dict[str, dict[str, int]] = {}
    for block, numbers in NUMBERS.items():
        for number, names in numbers.items():
            for name in names:
                ours.setdefault(name, {})[block] = number
    fields = SCHEMA["LayerParameter"].fields_by_name
    assert ours.pop(OURS) == {block: fields[block].number for block in NUMBERS if OURS in sum(NUMBERS[block].values(), ())}
    assert ours == pinned("fork_blocks.tsv")
    assert ours[fork_numbers.UNSKY] == {"deformable_convolution_param": 999}


def test_the_schemas_numbers_of_forks_fields() -> None:
    for message, fields in pinned("fork_fields.tsv").items():
        assert {name: SCHEMA[message].fields_by_name[name].number for name in fields} == fields, message


@needs(FACTS)
def test_the_tables_are_what_forks_publish() -> None:
    facts, compared = published(), 0
    titles = {fork.title: fork.repository.split(",")[0].split(":")[0] for fork in forks().values()} | REPOSITORIES
    for fork, blocks in pinned("fork_blocks.tsv").items():
        if known := facts.get(titles.get(fork, "")):
            assert {block: known.get(("LayerParameter", block)) for block in blocks} == blocks, fork
            compared += len(blocks)
    assert compared > 120
    everywhere: dict[tuple[str, str], set[int]] = {}
    for known in facts.values():
        for key, number in known.items():
            everywhere.setdefault(key, set()).add(number)
    for message, fields in pinned("fork_fields.tsv").items():
        for name, number in fields.items():
            if number < OWN_NUMBERS and (message, name) in everywhere and f"{message}.{name}" not in OWN_CHOICES:
                assert number in everywhere[message, name], f"{message}.{name}"
                compared += 1
    assert compared > 700
