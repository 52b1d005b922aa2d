"""A small training that draws random numbers all the time: shuffled rows and dropout."""

from __future__ import annotations

from pathlib import Path

import numpy as np

NET = """
name: "small"
layer {{ name: "data" type: "HDF5Data" top: "data" top: "label" include {{ phase: TRAIN }}
  hdf5_data_param {{ source: "files.txt" batch_size: 7 shuffle: true }} }}
layer {{ name: "data" type: "HDF5Data" top: "data" top: "label" include {{ phase: TEST }}
  hdf5_data_param {{ source: "files.txt" batch_size: 5 shuffle: true }} }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
  inner_product_param {{ num_output: {hidden} weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }}
layer {{ name: "drop1" type: "Dropout" bottom: "ip1" top: "ip1" dropout_param {{ dropout_ratio: 0.4 }} }}
layer {{ name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
  inner_product_param {{ num_output: 3 weight_filler {{ type: "gaussian" std: 0.1 sparse: 2 }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }}
"""

RULES = {
    "SGD": 'base_lr: 0.05 momentum: 0.9 lr_policy: "poly" power: 1',
    "Nesterov": 'base_lr: 0.05 momentum: 0.9 lr_policy: "step" gamma: 0.5 stepsize: 4',
    "AdaGrad": 'base_lr: 0.05 lr_policy: "fixed"',
    "RMSProp": 'base_lr: 0.01 rms_decay: 0.9 lr_policy: "inv" gamma: 0.1 power: 0.75',
    "AdaDelta": 'base_lr: 1 momentum: 0.95 delta: 1e-6 lr_policy: "multistep" gamma: 0.1 stepvalue: 3 stepvalue: 7',
    "Adam": 'base_lr: 0.01 momentum: 0.9 momentum2: 0.999 lr_policy: "exp" gamma: 0.98',
}
"""Each solver type with another learning rate policy."""


def make_training(folder: Path, kind: str, more: str, *, hidden: int = 8) -> Path:
    """Write data (31 and 12 rows of 6 numbers), net and solver into folder; the solver's path. The files name one another
    from the working directory, which must be folder."""
    make_rows(folder, np.random.default_rng(4))
    (folder / "net.prototxt").write_text(NET.format(hidden=hidden))
    solver = folder / "solver.prototxt"
    solver.write_text(f'net: "net.prototxt" type: "{kind}" {RULES[kind]} weight_decay: 0.001 random_seed: 5 {more}\n')
    return solver


def make_rows(folder: Path, random: np.random.Generator) -> None:
    """files.txt, and the two files that it names, of 31 and 12 rows of 6 numbers, with labels."""
    import h5py

    for name, rows in (("a.h5", 31), ("b.h5", 12)):
        with h5py.File(folder / name, "w") as file:
            file["data"] = random.standard_normal((rows, 6)).astype(np.float32)
            file["label"] = random.integers(0, 3, rows)
    (folder / "files.txt").write_text("a.h5\nb.h5\n")
