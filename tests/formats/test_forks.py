"""forks.tsv covers the fields of all forks (../shared/schema beside the repository), and none that the schema has."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from recordings import REASON, SHARED

from minicaffe import Net
from minicaffe.blob import Blob
from minicaffe.errors import Error, LayerError
from minicaffe.forked import Forked
from minicaffe.formats.fork_page import DISAGREEMENTS, known_forks, markdown
from minicaffe.formats.forks import (
    ANY,
    UNKNOWN,
    Effect,
    ForkField,
    NetFork,
    fork_field,
    fork_fields,
    fork_named,
    fork_of_net,
    forks,
)
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE, create
from minicaffe.layers.pool.unpooling import SEGNETS
from minicaffe.proto import caffe_pb2

ROOT = Path(__file__).resolve().parents[2]
FACTS = SHARED / "schema" / "fork_fields.tsv"
IMPORT = re.compile(r"^from (\.|minicaffe\.)((?:(?:data|layers)\.)?[\w.]+) import", flags=re.MULTILINE)
SCHEMA = caffe_pb2.DESCRIPTOR.message_types_by_name


def facts() -> list[dict[str, str]]:
    if not FACTS.is_file():
        pytest.skip(REASON)
    return list(csv.DictReader(FACTS.read_text(encoding="utf-8").splitlines(), delimiter="\t"))


def in_schema(message: str, name: str) -> bool:
    return message in SCHEMA and name in SCHEMA[message].fields_by_name


def lacking(message: str, enum: str, values: str) -> Iterator[str]:
    """An enum's values that the schema lacks, where it has the enum: otherwise a field of its type decides."""
    found = SCHEMA[message].enum_types_by_name.get(enum) if message in SCHEMA else None
    for value in values.split(";"):
        if found is not None and (name := value.partition("=")[0].strip()) and name not in found.values_by_name:
            yield name


def test_every_field_of_every_fork_is_known() -> None:
    rows = facts()
    unknown = [
        f"{row['fork']}: {row['message']}.{row['field']}"
        for row in rows
        if "enum" not in row["kind"]
        and not in_schema(row["message"], row["field"])
        and not (row["message"] == "LayerParameter" and in_schema("V1LayerParameter", row["field"]))  # V1 by another name
        and fork_field(row["message"], row["field"]) is None
    ]
    assert unknown == []
    print(f"{len(rows)} rows of {len({row['fork'] for row in rows})} forks")
    assert len(rows) > 3000


def test_every_value_that_a_fork_adds_to_an_enum_is_known() -> None:
    unknown, seen = [], 0
    for row in facts():
        for value in lacking(row["message"], row["field"], row["options"]) if "enum" in row["kind"] else ():
            fields = [f.name for f in SCHEMA[row["message"]].fields if f.enum_type and f.enum_type.name == row["field"]]
            seen += 1
            unknown += [
                f"{row['message']}.{name}: {value}" for name in fields if not fork_field(row["message"], f"{name}={value}")
            ]
    assert unknown == [] and seen > 5


def test_the_forks_named_are_those_that_have_the_field() -> None:
    titles = {fork.repository.split(",")[0]: fork.title for fork in forks().values()}
    titles |= {"NVIDIA/caffe15": "NVIDIA Caffe 0.15", "NVIDIA/caffe": "NVIDIA Caffe", "ChWick/ctc": "ChWick's Caffe (ctc-dev)"}
    titles |= {"facebook/C3D:C3D-v1.0": "C3D v1.0", "facebook/C3D:C3D-v1.1": "C3D v1.1"}
    wrong = set()
    for row in facts():
        key = row["fork"].replace("+", "/", 1)
        title = titles.get(key) or titles[key.split(":")[0]]
        found = fork_field(row["message"], row["field"])
        if found and not in_schema(row["message"], row["field"]):
            wrong |= {f"{title}: {found.message}.{found.name}"} if title not in found.forks else set()
    assert sorted(wrong) == []


def test_a_field_that_is_honoured_leaves_the_table() -> None:
    listed = [field for field in fork_fields() if not field.effect.in_schema]
    stale = [f"{field.message}.{field.name}" for field in listed if not field.value and in_schema(field.message, field.name)]
    stale += [field.message for field in listed if field.name == ANY and field.message in SCHEMA]
    for field in listed:
        if field.value and field.message in SCHEMA:
            values = SCHEMA[field.message].fields_by_name[field.name].enum_type.values_by_name
            stale += [f"{field.message}.{field.name}={field.value}"] if field.value in values else []
    assert stale == [], "minicaffe/formats/forks.tsv: delete these"


def test_what_the_schemas_of_forks_have_is_honoured() -> None:
    honoured = [field for field in fork_fields() if field.effect is Effect.HONOURED]
    assert len(honoured) > 100
    assert [field for field in honoured if not field.forks or not in_schema(field.message, field.name)] == []
    found = fork_field("PoolingParameter", "ceil_mode")
    assert found is not None and found.effect is Effect.HONOURED and found.forks[0] == "Cascade R-CNN"


def test_what_is_honoured_is_read() -> None:
    """By a file of layers/ that names the message's block, or one that it imports."""
    names: dict[str, list[str]] = {}
    for block in (field for field in SCHEMA["LayerParameter"].fields if field.message_type):
        names.setdefault(block.message_type.name, []).append(block.name)
    files = {path: words(path) for path in (ROOT / "layers").rglob("*.py")}
    read = {
        message: set().union(*map(words, with_imports(path for path in files if files[path].intersection(blocks))))
        for message, blocks in names.items()
    }
    honoured = [field for field in fork_fields() if field.effect is Effect.HONOURED and field.message in read]
    unread = [f"{field.message}.{field.name}" for field in honoured if field.name not in read[field.message]]
    assert len(honoured) > 500
    assert unread == [], "reserve their numbers in proto/forks, and list them in minicaffe/formats/forks.tsv"


BESIDE = {"DetectionLoss": "detection_loss_param { cls_num: 3 }", "DetectionOutput": 'bottom: "cells"'}
"""What a layer's other fields need."""
BY_OTHERS = {
    ("DeformableConvolutionParameter", "axis"): "maps have four axes",
    ("ModulatedDeformableConvolutionParameter", "axis"): "maps have four axes",
    ("RegionLossParameter", "biases"): "as many as num says",
    ("RegionLossParameter", "coords"): "boxes have four",
    ("YoloDetectionOutputParameter", "coords"): "boxes have four",
    ("SpatialTransformerParameter", "sampler_type"): "the fork has one",
    ("SpatialTransformerParameter", "transform_type"): "the fork has one",
    **{("UpsampleParameter", name): "are for two bottoms" for name in SEGNETS},
}
"""Honoured fields of which a layer accepts no value by itself, and why."""


def test_layers_accept_what_is_honoured_and_nothing_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are set up with the field alone, at values other than its default: whether each time all stop with an error of the
    field."""
    monkeypatch.setattr(Layer, "error", lambda layer, message, field="": LayerError(field))
    effects = {(field.message, field.name): field.effect for field in fork_fields() if field.effect.in_schema}
    refused: dict[tuple[str, str], bool] = {}
    for kind, layer in CATALOGUE.items():
        for block in layer.param_block:
            for field in block_fields(block):
                key = (block, field.name)
                if (field.containing_type.name, field.name) in effects and refused.get(key, True):
                    besides = {"", BESIDE.get(kind, "")}
                    stops = (stops_at(kind, key, other, beside) for other in others(field) for beside in besides)
                    refused[key] = all(stops)
    found = {(message_of(block), name) for (block, name), stops in refused.items() if stops} - BY_OTHERS.keys()
    assert sorted(found ^ {key for key, effect in effects.items() if effect is Effect.REFUSED}) == []
    assert len(refused) > 400 and len(found) > 10 and BY_OTHERS.keys() <= effects.keys()


def message_of(block: str) -> str:
    return str(SCHEMA["LayerParameter"].fields_by_name[block].message_type.name)


def block_fields(block: str) -> Iterable[FieldDescriptor]:
    found: Iterable[FieldDescriptor] = SCHEMA["LayerParameter"].fields_by_name[block].message_type.fields
    return found


def others(field: FieldDescriptor) -> list[Any]:
    """Values of a field but its default."""
    if field.message_type:
        return [None]
    if field.enum_type:
        found: list[Any] = [value.number for value in field.enum_type.values]
    elif field.cpp_type == field.CPPTYPE_BOOL:
        found = [False, True]
    elif field.cpp_type == field.CPPTYPE_STRING:
        found = ["x", "L1", "IOMU"]
    else:
        found = [0, 1, 2, 4, *[0.5] * (field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE))]
    return [value for value in found if value != field.default_value]


def stops_at(kind: str, key: tuple[str, str], value: object, beside: str) -> bool:
    """Whether the layer's setup stops with an error that names the field."""
    layer = create(text_format.Parse(beside, caffe_pb2.LayerParameter(name="made", type=kind)))
    message, name = getattr(layer.param, key[0]), key[1]
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.message_type:
        held = getattr(message, name)
        held.SetInParent() if hasattr(held, "SetInParent") else held.add()
    elif field.default_value == []:
        getattr(message, name).extend([value] * 2)
    else:
        setattr(message, name, value)
    bottoms, tops = (count if isinstance(count, int) else count[0] for count in (layer.num_bottom, layer.num_top))
    try:
        layer.setup([Blob((2, 3, 4, 5)) for _ in range(bottoms)], [Blob() for _ in range(max(tops, 1))])
    except LayerError as error:
        return str(error) == ".".join(key)
    except Exception:  # the bottoms are not the layer's
        return False
    return False


@cache
def words(path: Path) -> set[str]:
    """The words of a file, but for its docstrings."""
    return set(re.findall(r"\w+", re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)))


def with_imports(paths: Iterable[Path]) -> set[Path]:
    """The files, and those of layers/ and minicaffe/data that they import."""
    found, left = set(), list(paths)
    while left:
        if (path := left.pop()) in found:
            continue
        found.add(path)
        for dots, name in IMPORT.findall(path.read_text(encoding="utf-8")):
            folder = path.parent if dots == "." else ROOT if name.startswith("layers.") else ROOT / "minicaffe"
            left += [file for file in [folder.joinpath(*name.split(".")).with_suffix(".py")] if file.is_file()]
    return found


def test_a_row_is_whole() -> None:
    keys = [(field.message, field.name, field.value) for field in fork_fields() if field.effect is not Effect.HONOURED]
    assert len(keys) == len(set(keys))
    for field in fork_fields():
        assert field.forks and (field.sentence or field.effect is Effect.HONOURED), field
        assert not field.sentence.endswith(".") and field.sentence == field.sentence.strip(), field
        assert not field.harmless or field.effect in (Effect.NOT_BUILT, Effect.REFUSED), field


@pytest.mark.parametrize(
    ("message", "name", "effect", "fork"),
    [
        ("PoolingParameter", "torch_pooling", Effect.NOT_BUILT, "NVIDIA Caffe"),
        ("ConvolutionParameter", "cudnn_convolution_algo_seeker", Effect.NONE, "NVIDIA Caffe"),
        ("LayerParameter", "multinode", Effect.NONE, "Intel Caffe"),
        ("LpqLossParameter", "pq_episode_starts_at_iter", Effect.NONE, "FlowNet"),
        ("V1LayerParameter", "reshape_every_iter", Effect.NONE, "FlowNet"),
        ("SolverParameter", "larc", Effect.NOT_BUILT, "NVIDIA Caffe"),
    ],
)
def test_a_field(message: str, name: str, effect: Effect, fork: str) -> None:
    found = fork_field(message, name)
    assert found is not None and (found.message, found.name) == (message, name)
    assert (found.effect, found.forks[0]) == (effect, fork)


def test_bvlcs_fields_are_of_no_fork() -> None:
    assert fork_field("PoolingParameter", "kernel_size") is None and fork_field("PoolingParameter", "pool=MAX") is None


def test_harmless_values() -> None:
    def field(*harmless: str, effect: Effect = Effect.NOT_BUILT) -> ForkField:
        return ForkField("M", "f", ("F",), effect, "does", harmless)

    assert field("1.0").is_harmless("1") and field("0").is_harmless("0.0") and field('"L2"').is_harmless("'L2'")
    assert field("false").is_harmless("false") and not field("false").is_harmless("true")
    assert not field("1").is_harmless("1.5") and not field().is_harmless("0")
    assert field(effect=Effect.NONE).is_harmless("anything")


def test_a_fork_is_named_by_any_of_its_names() -> None:
    for name, fork in forks().items():
        assert all(fork_named(said) == name for said in (name, name.upper(), fork.repository, *fork.names))
        assert fork_named(fork.title) == name or fork.title.lower() in forks()  # "DeepLab", and the name deeplab
    for said, name in (
        ("hole", "deeplabv1"),
        ("gpapan/caffe", "deeplabv1"),
        ("NVIDIA/caffe 0.17", "nv17"),
        ("luoyetx/mini-caffe", "pvanet"),
        ("facebook/C3D", "c3d"),
        ("chwick/caffe", "ctc"),
        ("sanghoon/caffe", "pvanet"),
        ("", ""),
    ):
        assert fork_named(said) == name
    for said in ("NVIDIA/caffe", "caffe"):  # of two forks; of none
        with pytest.raises(Error, match="no fork is called"):
            fork_named(said)


def test_layers_that_only_one_family_has_tell_the_fork() -> None:
    layer = caffe_pb2.LayerParameter
    conv, decode = layer(type="Convolution"), layer(type="DecodeBBox")
    assert fork_of_net("", [conv, decode]) == NetFork("cascade", "the net has DecodeBBox layers")
    assert fork_of_net("", [conv, layer(type="DecodeBBox", bottom="dsr")]) == UNKNOWN  # or makefile/frcnn's
    assert fork_of_net("ssd", [layer(type="BoxOutput")]) == NetFork("ssd", "fork ssd")
    assert fork_of_net("", [conv, layer(type="DetectionOutput", bottom="abc")]) == UNKNOWN == NetFork("", "")
    alone = fork_of_net("", [conv, layer(type="DetectionOutput", bottom="a")])
    assert alone == NetFork("yolov2", "the net has DetectionOutput layers of one bottom")


def test_the_document_is_current() -> None:
    written = (ROOT / "docs" / "forks.md").read_text(encoding="utf-8")
    assert written == markdown(), "run: python -m minicaffe forks --markdown -o docs/forks.md"


def test_the_document_lists_every_type_that_forks_define_differently() -> None:
    listed = {kind for kind, *_ in DISAGREEMENTS}
    forked = {kind for kind, layer in CATALOGUE.items() if issubclass(layer, Forked) and len(vars(layer).get("kinds", ())) > 1}
    assert forked - listed == set()
    assert {name for *_, names in DISAGREEMENTS for name in names.split()} <= forks().keys()


def test_memory_settings_of_temporal_segment_networks_have_no_effect() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = Net(
            parse_net('mem_param { optimize_train: true } input: "x" input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4')
        )
        assert parse_solver("richness: 200 max_iter: 3").max_iter == 3
    assert net.skipped == []


def test_the_documents_count_the_forks_alike() -> None:
    """The page of the forks has both numbers; elsewhere forks are counted as there."""
    with_fields = {title for field in fork_fields() for title in field.forks}
    page = (ROOT / "docs/forks.md").read_text(encoding="utf-8")
    assert f"minicaffe knows {known_forks()} forks of Caffe by name. {len(with_fields)} of them have fields" in page
    for path in (ROOT / "docs").rglob("*.md"):
        counted = re.findall(r"\b(\d+) forks\b", path.read_text(encoding="utf-8"))
        assert {int(number) for number in counted} <= {known_forks(), len(with_fields)}, path
