"""The schema: caffe.desc is what caffe.proto says, and caffe.proto is what every Caffe says."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from recordings import SHARED, needs

from minicaffe.proto import caffe_pb2

ROOT = Path(__file__).parents[1]
FACTS = SHARED / "schema" / "caffe_fields.tsv"

# Numbers that two forks use differently. BVLC's stay.
RENUMBERED = {
    "SolverParameter.eval_type": 90041,
    "SolverParameter.ap_version": 90042,
    "LossParameter.NormalizationMode.PRE_FIXED": 4,
}


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools (the extra dev) is not installed")
def test_caffe_desc_is_current():
    got = subprocess.run([sys.executable, ROOT / "proto/compile.py", "--check"], capture_output=True, text=True, check=False)
    assert got.returncode == 0, got.stdout + got.stderr


@needs(FACTS)
def test_every_field_and_enum_value_of_every_caffe_is_there():
    schema = descriptor_pb2.FileDescriptorSet.FromString((ROOT / "proto/caffe.desc").read_bytes()).file[0]
    protos = {message.name: message for message in schema.message_type}
    enums = {e.name: {v.name: v.number for v in e.value} for e in schema.enum_type}
    enums |= {f"{m}.{e.name}": {v.name: v.number for v in e.value} for m, p in protos.items() for e in p.enum_type}
    labels = {"optional": 1, "required": 2, "repeated": 3}
    rows = list(csv.DictReader(FACTS.read_text().splitlines(), delimiter="\t"))
    for row in rows:
        name = f"{row['message']}.{row['field']}"
        number = RENUMBERED.get(name, int(row["number"]))
        if row["label"] == "enum":
            assert enums[row["message"]][row["field"]] == number, name
            continue
        field = next((f for f in protos[row["message"]].field if f.name == row["field"]), None)
        assert field is not None, name
        assert field.number == number, name
        assert field.label == labels[row["label"]], name
        assert type_name(field) == row["type"].rsplit(".", maxsplit=1)[-1], name
        assert same_default(field, row["default"]), f"{name}: {field.default_value} is not {row['default']}"
        assert field.options.packed == ("packed" in row["option"]), name
    print(f"{len(rows)} fields and enum values agree")
    assert len(rows) > 700


def type_name(field: descriptor_pb2.FieldDescriptorProto) -> str:
    if field.type_name:
        return field.type_name.rsplit(".", maxsplit=1)[-1]
    return descriptor_pb2.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def same_default(field: descriptor_pb2.FieldDescriptorProto, text: str) -> bool:
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE) and text and field.default_value:
        return np.float32(field.default_value) == np.float32(text)
    return field.default_value == text.strip('"')


def test_no_field_number_is_used_twice():
    for message in caffe_pb2.DESCRIPTOR.message_types_by_name.values():
        numbers = [f.number for f in message.fields]
        assert len(set(numbers)) == len(numbers), message.name


def test_the_schema_keeps_out_of_the_common_descriptor_pool():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("caffe.proto")


def test_messages_enums_and_values_are_published():
    assert caffe_pb2.TEST == caffe_pb2.Phase.Value("TEST") == 1
    assert caffe_pb2.PoolingParameter.AVE == 1
    assert caffe_pb2.LayerParameter.FromString(caffe_pb2.LayerParameter(name="x").SerializeToString()).name == "x"


def test_the_stub_names_what_the_schema_has():
    """caffe_pb2.pyi, for editors and mypy, is made together with caffe.desc."""
    stub = (ROOT / "proto/caffe_pb2.pyi").read_text()
    for name, message in caffe_pb2.DESCRIPTOR.message_types_by_name.items():
        assert f"class {name}(" in stub
        for field in message.fields:
            assert f"{field.name.upper()}_FIELD_NUMBER" in stub
