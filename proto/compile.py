"""Compile caffe.proto and forks/*.proto into caffe.desc (read at run time) and caffe_pb2.pyi (for editors and mypy).

A fork's file has the messages that it adds, and `extend MESSAGE { ... }` for fields of messages that others have too.
Run `python proto/compile.py` after a change to a schema; it needs grpcio-tools and mypy-protobuf (extra `dev`).
`python proto/compile.py --check` writes nothing and fails when caffe.desc is not current.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


EXTEND = re.compile(r"^extend (\w+) \{\n(.*?)^\}\n", flags=re.M | re.S)


def whole_schema() -> str:
    """caffe.proto with the messages of all forks, and with the fields that they add to others' messages."""
    forks = [path.read_text(encoding="utf-8") for path in sorted((HERE / "forks").glob("*.proto"))]
    own = [re.sub(r"^(syntax|package)\b.*;\n", "", EXTEND.sub("", fork), flags=re.M) for fork in forks]
    text = "\n".join([(HERE / "caffe.proto").read_text(encoding="utf-8"), *own])
    for message, fields in (extended for fork in forks for extended in EXTEND.findall(fork)):
        opened = re.compile(rf"^message {message} \{{\n", flags=re.M)
        found = opened.search(text)
        if not found:
            raise SystemExit(f"a fork extends {message}, which no schema has")
        start = found.end()
        text = text[:start] + fields + text[start:]
    return text


def compile_schema(folder: Path, *, stubs: bool) -> bytes:
    """Run protoc on the whole schema, with its output in folder; return the descriptor set."""
    from grpc_tools import protoc

    out = folder / "caffe.desc"
    (folder / "caffe.proto").write_text(whole_schema(), encoding="utf-8")
    arguments = ["protoc", f"-I{folder}", f"--descriptor_set_out={out}"]
    if stubs:
        arguments.append(f"--mypy_out=quiet:{folder}")
    if protoc.main([*arguments, str(folder / "caffe.proto")]):
        raise SystemExit("protoc refused caffe.proto")
    return out.read_bytes()


def same_schema(one: bytes, other: bytes) -> bool:
    """Whether two descriptor sets say the same; protoc's versions differ in how they write a float's default."""
    return _canonical(one) == _canonical(other)


def _canonical(descriptors: bytes) -> bytes:
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    floats = (descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT, descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE)
    for message in (message for file in files.file for message in file.message_type):
        for field in message.field:
            if field.type in floats and field.default_value:
                field.default_value = f"{float(field.default_value):.6g}"
    return files.SerializeToString(deterministic=True)


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        descriptors = compile_schema(folder, stubs=not check)
        if check:
            current = same_schema((HERE / "caffe.desc").read_bytes(), descriptors)
            print("caffe.desc is current" if current else "caffe.desc is stale: run python proto/compile.py")
            return 0 if current else 1
        (HERE / "caffe.desc").write_bytes(descriptors)
        (HERE / "caffe_pb2.pyi").write_text((folder / "caffe_pb2.pyi").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
