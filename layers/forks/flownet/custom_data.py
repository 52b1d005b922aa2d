"""CustomData: images, flow and masks from an LMDB of Datums, for FlowNet. Source: FlowNet 2's custom_data_layer.cpp."""

from __future__ import annotations

import numpy as np

from minicaffe.data.database import open_database
from minicaffe.data.shard import current_shard
from minicaffe.files import granted_folder
from minicaffe.layer import check_finite_fields
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.proto import caffe_pb2

from .channel_slices import RecordSource, Setting

Param = caffe_pb2.DataParameter
REFUSED = ("rand_skip", "crop_size", "mirror")


class CustomData(PrefetchingLayer):
    """The records of an LMDB, their channels cut at data_param.slice_point and decoded as encoding says for each slice.

    No bottom. top: for each slice (batch_size, C, H, W): (value - mean) * scale; optionally the labels (batch_size, 1, 1, 1).
    mean: data_param.mean_file, of all channels, or subtract, of the first ones. preselection_file: a number for each record, of
    which those count that have preselection_label. range_start, range_end: the first and last of them, in their order or, with
    rand_permute_order: FIRST_PERMUTE_THEN_RANGE, of the permuted ones. rand_permute: in random order, the same each time
    around, from rand_permute_seed if that is above 0; drawn anew every permute_every_iter batches; block_size: within blocks,
    the last record of which stays.
    Raises LayerError for another backend than LMDB, a record that is not of the first one's size or whose bytes are not those
    of its slices, a mean that does not fit, another number of tops than slices, an empty choice of records, and for rand_skip,
    crop_size and mirror, which the original refuses too.
    """

    type = "CustomData"
    num_top = (1, None)
    param_block = ("data_param",)

    def make_source(self, tops: int, generator: np.random.Generator) -> RecordSource:
        param = self.param.data_param
        batch = param.batch_size if param.HasField("batch_size") else 1
        self.positive(batch, "data_param.batch_size")
        if wrong := [name for name in REFUSED if getattr(param, name)]:
            raise self.error(f"{wrong[0]} is not supported, in the original neither", f"data_param.{wrong[0]}")
        if param.backend != Param.LMDB:
            raise self.error("reads LMDBs alone: write backend: LMDB", "data_param.backend")
        slices = len(param.slice_point) + 1
        if tops not in (slices, slices + 1):
            raise self.error(
                f"{slices} slices give {slices} tops, or one more for labels, got {tops}", "data_param.slice_point"
            )
        if len(param.encoding) > slices:
            raise self.error(f"{len(param.encoding)} encodings given for {slices} slices", "data_param.encoding")
        check_finite_fields(self, "data_param")
        seed = param.rand_permute_seed or int(generator.integers(2**63))
        database = open_database(granted_folder(param.source), "lmdb")
        return RecordSource(database, Setting(param, batch, seed, self.dtype, tops), current_shard(self.phase))
