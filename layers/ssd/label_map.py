"""The SSD fork's label maps: prototxt files of LabelMap, a name, a label and a name to show for each class."""

from __future__ import annotations

from minicaffe.access import granted
from minicaffe.errors import DataError, Error, on_one_line
from minicaffe.files import read_text
from minicaffe.formats.prototxt import UNPRINTABLE, parse_message
from minicaffe.proto import caffe_pb2

MOST_CLASSES = 1_000_000
"""Most classes of detections: there is a list of them."""


def read_label_map(file: str) -> dict[int, caffe_pb2.LabelMapItem]:
    """The items of a label map (LabelMap as prototxt) by label. Raises DataError."""
    try:
        items = parse_message(read_text(granted(file)), caffe_pb2.LabelMap(), file).item
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error
    except (Error, UnicodeDecodeError) as error:
        raise DataError(str(error)) from error
    labels = {item.label: item for item in items}
    if len(labels) < len(items) or len({item.name for item in items}) < len(items):
        raise DataError(f"{file}: a name or a label stands in it twice")
    for item in items:
        if UNPRINTABLE.search(item.name):
            raise DataError(f'{file}: the name "{on_one_line(item.name)}" holds a control character')
    return labels
