"""HDF5Output: writes two bottoms to a file, as the datasets data and label. Source: Caffe's hdf5_output_layer.cpp."""

from __future__ import annotations

import os
from collections.abc import Sequence

from minicaffe.access import granted
from minicaffe.blob import Array, Blob
from minicaffe.errors import DataError, Error, LayerError
from minicaffe.files import plain, unlinked
from minicaffe.formats.hdf5 import adding, require_h5py, writing
from minicaffe.layer import Layer


class HDF5Output(Layer):
    """Each forward adds its rows to the file, whose datasets are (N, C, H, W); the first forward starts the file anew: an older
    file stays until its rows are written.

    bottom: data (N, ...) and label (N, ...), at most 4 axes; absent ones count as 1. No top, no gradient. (Caffe fails at the
    second forward, as the datasets are there already.)
    Raises LayerError when the bottoms differ in N or in their rows from those before, and for a file that cannot be written.
    """

    type = "HDF5Output"
    num_bottom, num_top = 2, 0
    param_block = ("hdf5_output_param",)
    weight_names = ()
    has_gradient = False
    in_sequence = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        require_h5py()
        self.file_name = self.param.hdf5_output_param.file_name
        if not self.file_name:
            raise self.error("needs hdf5_output_param.file_name", "hdf5_output_param")
        try:
            unlinked(granted(self.file_name), DataError)
        except DataError as error:
            raise self.error(str(error), "hdf5_output_param.file_name") from error
        if os.path.exists(self.file_name) and not require_h5py().is_hdf5(self.file_name):
            raise self.error(f"{self.file_name} is there and no HDF5 file: not overwritten", "hdf5_output_param.file_name")
        self.begun = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if bottom[0].num != bottom[1].num:
            raise self.error(f"data has {bottom[0].num} rows, label has {bottom[1].num}")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rows = {
            name: blob.data.reshape(blob.num, blob.channels, blob.height, blob.width)
            for name, blob in zip(("data", "label"), bottom, strict=True)
        }
        try:
            if self.begun:  # only a file that this layer began is added to
                self._add(rows)
            else:
                self._begin(rows)
        except LayerError:
            raise
        except Error as error:
            raise self.error(str(error), "hdf5_output_param.file_name") from error
        except (OSError, KeyError) as error:
            raise self.error(
                f"cannot write {self.file_name}: {plain(error) if isinstance(error, OSError) else error}",
                "hdf5_output_param.file_name",
            ) from error
        self.begun = True

    def _begin(self, rows: dict[str, Array]) -> None:
        """A new file in the place of an older one."""
        with writing(unlinked(self.file_name)) as file:
            for name, values in rows.items():
                # the first axis may grow: later forwards add rows
                file.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=True)

    def _add(self, rows: dict[str, Array]) -> None:
        with adding(self.file_name) as file:
            for name, values in rows.items():
                stored = file[name]
                if stored.shape[1:] != values.shape[1:]:
                    raise self.error(f"{self.file_name} holds {name} of shape {stored.shape}, got {values.shape}")
                stored.resize(len(stored) + len(values), axis=0)
                stored[len(stored) - len(values) :] = values
