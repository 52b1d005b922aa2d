"""A part of a net as a net of its own, with its weights alone; a detector without the head that chips lack.

part = cut(net, starts=["conv3_1"], ends=["blob:pool5"])     # Input layers, the layers between, their weights
part.save("part.prototxt", "part.caffemodel")
trunk, rest = drop_head(net, target="rknn")                  # rest reads the trunk's blobs; join_script joins both
"""

from .join import join_script, run_parts
from .part import Part, blob_at, cut, cut_at, drop_head, has_head
from .targets import TARGETS

__all__ = ["TARGETS", "Part", "blob_at", "cut", "cut_at", "drop_head", "has_head", "join_script", "run_parts"]
