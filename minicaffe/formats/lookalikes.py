"""Files that are often given in place of weights or a net, recognised by their first bytes, with advice for each."""

from __future__ import annotations

import codecs
import re

from minicaffe.formats.named_arrays import SIGNATURE as SAFETENSORS

START = 1024
"""The number of bytes to look at."""

PROTOTXT = rb"\s*(#[^\n]*\n\s*)*(name|layers?|input(_dim|_shape)?|net|train_net|force_backward|state|base_lr|test_iter)\s*[:{]"

NPZ = rb"(?s)PK\x03\x04.{26}[^\0]*\.npy|PK\x05\x06"
"""A zip's first entry: 26 bytes of header, then its name; or the end of an empty one."""
SWAPPED = "are the two files swapped?"
PICTURES = "minicaffe detect NET WEIGHTS FILE takes images, other commands --image FILE or --input BLOB=FILE"
LOOKALIKES = {
    rb"version https://git-lfs": ("a Git LFS pointer", "the real file was never fetched"),
    rb"(?i)\s*<(!doctype|html|\?xml)": ("a web page", "the download went wrong"),
    rb"\x89PNG\r\n": ("a PNG picture", PICTURES),
    rb"\xff\xd8\xff": ("a JPEG picture", PICTURES),
    rb"GIF8[79]a": ("a GIF picture", PICTURES),
    rb"(?s)BM.{4}\0{4}": ("a BMP picture", PICTURES),
    rb"II\*\0|MM\0\*": ("a TIFF picture", PICTURES),
    rb"(?s)RIFF.{4}WEBP": ("a WebP picture", PICTURES),
    rb"\x93NUMPY": ("a NumPy array (.npy)", "minicaffe run NET WEIGHTS --input BLOB=FILE reads it"),
    NPZ: ("an .npz of arrays", "minicaffe compare NET FILE reads it, by the names of blobs"),
    rb"(?s)PK\x03\x04.{26}[^/\0]*/(data\.pkl|\.format|byteorder)": (
        "a PyTorch file (.pt, .pth)",
        "load it in PyTorch; for a to_torch Module use load_state_dict and copy_to",
    ),
    rb"PK\x03\x04": ("a zip archive", "unpack it first"),
    rb"\x80[\x02-\x05]": ("a Python pickle", "perhaps an old PyTorch file; minicaffe loads no pickles"),
    rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!": ("a packed file", "unpack it first"),
    rb"(?s).{257}ustar": ("a tar archive", "unpack it first"),
    rb"%PDF-": ("a PDF", ""),
    SAFETENSORS: ("a safetensors file", "give it as weights, after the net"),
    # MDB_page's header, then MDB_meta's magic number.
    rb"(?s).{16}\xde\xc0\xef\xbe": ("an LMDB database", "give its folder as a Data layer's source"),
}
"""Pattern of the first bytes: what the file is, and advice."""


def lookalike(start: bytes, wanted: str = "weights") -> str:
    """Return what a file with these first bytes is: "a PNG picture, not weights: ..."; "" if it may be the wanted kind."""
    if (found := _known(start)) is None:
        return ""
    kind, advice = found
    return f"{kind}, not {wanted}" + (f": {advice}" if advice else "")


def _known(start: bytes) -> tuple[str, str] | None:
    text = not re.search(rb"[\x00-\x08\x0e-\x1f]", start)
    if text and re.match(PROTOTXT, start):
        return "a prototxt", SWAPPED
    if _is_onnx(start):
        return "an ONNX model", "minicaffe compare NET FILE reads it; onnxruntime runs it"
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
    """Return whether the bytes begin a ModelProto.

    It has ir_version in field 1, texts and a number in 2 to 6, then the graph in 7, which no training state has.
    """
    if not re.match(rb"\x08[\x01-\x7f]", start):
        return False
    at = 2
    while at + 1 < len(start) and start[at] in b"\x12\x1a\x22\x32" and start[at + 1] < 128:
        at += 2 + start[at + 1]
        if start[at : at + 1] == b"\x28":  # model_version, a number
            at += 1 + len(re.match(rb"[\x80-\xff]*.?", start[at + 1 :], re.DOTALL)[0])  # type: ignore[index]
    return start[at : at + 1] in (b"\x3a", b"\x42")
