"""Files that are often handed in where weights or a net are wanted, known by how they begin, and what takes them."""

from __future__ import annotations

import codecs
import re

START = 1024
"""Bytes of a file's start that are looked at."""

PROTOTXT = rb"\s*(#[^\n]*\n\s*)*(name|layers?|input(_dim|_shape)?|net|train_net|force_backward|state|base_lr|test_iter)\s*[:{]"

SWAPPED = "are the two files swapped?"
PICTURES = "minicaffe detect NET WEIGHTS FILE takes it as an image, minicaffe run with --input BLOB=FILE as an input"
LOOKALIKES = {
    rb"version https://git-lfs": ("a Git LFS pointer", "the real file was never fetched"),
    rb"(?i)\s*<(!doctype|html|\?xml)": ("a web page", "the download went wrong"),
    rb"\x89PNG\r\n": ("a PNG picture", PICTURES),
    rb"\xff\xd8\xff": ("a JPEG picture", PICTURES),
    rb"GIF8[79]a": ("a GIF picture", PICTURES),
    rb"(?s)BM.{4}\0{4}": ("a BMP picture", PICTURES),
    rb"II\*\0|MM\0\*": ("a TIFF picture", PICTURES),
    rb"(?s)RIFF.{4}WEBP": ("a WebP picture", PICTURES),
    rb"\x93NUMPY": ("an array of NumPy's (.npy)", "minicaffe run NET WEIGHTS --input BLOB=FILE takes it"),
    rb"(?s)PK\x03\x04.{26}[^\0]*\.npy": ("an .npz of arrays", "minicaffe compare NET FILE takes it, by the names of blobs"),
    rb"(?s)PK\x03\x04.{26}[^/\0]*/(data\.pkl|\.format|byteorder)": (
        "a PyTorch file (.pt, .pth)",
        "PyTorch reads it; of a to_torch Module, load_state_dict and copy_to bring it back",
    ),
    rb"PK\x03\x04": ("a zip archive", "unpack it first"),
    rb"\x80[\x02-\x05]": ("a Python pickle", "an old PyTorch file? Nothing here runs one"),
    rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!": ("a packed file", "unpack it first"),
    rb"(?s).{257}ustar": ("a tar archive", "unpack it first"),
    rb"%PDF-": ("a PDF", ""),
    rb"(?s).{8}\{\"": ("a safetensors file", ""),
    rb"(?s).{16}\xde\xc0\xef\xbe": ("an LMDB database", "a Data layer's source is the folder it lies in"),
}
"""Pattern of the start: what the file is, and what helps."""


def lookalike(start: bytes, wanted: str = "weights") -> str:
    """What the file that starts so is, when it is not `wanted`: "a PNG picture, not weights: ..."; "" for one that may be."""
    if (found := _known(start)) is None:
        return ""
    kind, advice = found
    return f"{kind}, not {wanted}" + (f": {advice}" if advice else "")


def _known(start: bytes) -> tuple[str, str] | None:
    text = not re.search(rb"[\x00-\x08\x0e-\x1f]", start)
    if text and re.match(PROTOTXT, start):
        return "a prototxt", SWAPPED
    if _is_onnx(start):
        return "an ONNX model", "minicaffe compare NET FILE takes it; onnxruntime runs it"
    for pattern, found in LOOKALIKES.items():
        if re.match(pattern, start):
            return found
    return ("a text file", "") if text and _is_utf8(start) else None


def _is_utf8(start: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


def _is_onnx(start: bytes) -> bool:
    """A ModelProto: ir_version at 1, texts and a number at 2 to 6, then the graph at 7. A training state has no field 7."""
    if not re.match(rb"\x08[\x01-\x7f]", start):
        return False
    at = 2
    while at + 1 < len(start) and start[at] in b"\x12\x1a\x22\x32" and start[at + 1] < 128:
        at += 2 + start[at + 1]
        if start[at : at + 1] == b"\x28":  # model_version, a number
            at += 1 + len(re.match(rb"[\x80-\xff]*.?", start[at + 1 :], re.DOTALL)[0])  # type: ignore[index]
    return start[at : at + 1] in (b"\x3a", b"\x42")
