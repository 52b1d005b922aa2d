"""The names of older generations of Caffe, and those of today."""

from __future__ import annotations

from minicaffe.proto import caffe_pb2


def capitalised(name: str) -> str:
    """INNER_PRODUCT as InnerProduct."""
    return "".join(word.capitalize() for word in name.split("_"))


_V1_EXCEPTIONS = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output", "LRN": "LRN",
    "MVN": "MVN", "RELU": "ReLU", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH", "NONE": "",
    "BN": "BN", "CONVOLUTION3D": "Convolution3D", "DECONVOLUTION3D": "Deconvolution3D", "DENSE_CRF": "DenseCRF",
    "ELTWISE_PRODUCT": "Eltwise", "MCWINDOW_DATA": "MCWindowData", "POOLING3D": "Pooling3D",
}  # fmt: skip
V1_TYPES = {v1: _V1_EXCEPTIONS.get(v1, capitalised(v1)) for v1 in caffe_pb2.V1LayerParameter.LayerType.keys()}  # noqa: SIM118
"""V1's enum names, of forks too, and V2's types."""
C3D_TYPES = {"ArgMax": "Convolution3D", "MVN": "Deconvolution3D"}
"""BVLC's types without weights whose V1 numbers C3D gives to types with weights, and those."""
V0_TYPES = {
    v0: {"conv": "CONVOLUTION", "images": "IMAGE_DATA", "innerproduct": "INNER_PRODUCT", "pool": "POOLING"}.get(v0, v0.upper())
    for v0 in (
        "accuracy", "bnll", "concat", "conv", "data", "dropout", "euclidean_loss", "flatten", "hdf5_data", "hdf5_output",
        "im2col", "images", "infogain_loss", "innerproduct", "lrn", "multinomial_logistic_loss", "pool", "relu", "sigmoid",
        "softmax", "softmax_loss", "split", "tanh", "window_data",
    )
}  # fmt: skip
"""V0's types, and V1's enum names."""

_V0_BLOCKS = {
    "conv": ("convolution_param", "num_output biasterm weight_filler bias_filler pad kernelsize group stride"),
    "innerproduct": ("inner_product_param", "num_output biasterm weight_filler bias_filler"),
    "pool": ("pooling_param", "pad kernelsize stride pool"),
    "dropout": ("dropout_param", "dropout_ratio"),
    "lrn": ("lrn_param", "local_size alpha beta k"),
    "concat": ("concat_param", "concat_dim"),
    "infogain_loss": ("infogain_loss_param", "source"),
    "data": ("data_param", "source batchsize rand_skip"),
    "hdf5_data": ("hdf5_data_param", "source batchsize"),
    "images": ("image_data_param", "source batchsize rand_skip new_height new_width shuffle_images"),
    "window_data": (
        "window_data_param",
        "source batchsize det_fg_threshold det_bg_threshold det_fg_fraction det_context_pad det_crop_mode",
    ),
    "*": ("transform_param", "scale meanfile cropsize mirror"),
}
"""The fields of V0 that each type ("*": any type) uses, and the block of V1 that has them."""
_V0_RENAMED = {
    "biasterm": "bias_term", "kernelsize": "kernel_size", "meanfile": "mean_file", "batchsize": "batch_size",
    "cropsize": "crop_size", "shuffle_images": "shuffle",
}  # fmt: skip
V0_FIELDS: dict[str, dict[str, str]] = {"hdf5_output_param": {"hdf5_output": "hdf5_output_param"}}
"""V0's field -> V0's type -> the path of V1's field."""
for _type, (_block, _names) in _V0_BLOCKS.items():
    for _name in _names.split():
        _new_name = _V0_RENAMED.get(_name, _name.removeprefix("det_"))
        V0_FIELDS.setdefault(_name, {})[_type] = f"{_block}.{_new_name}"
V0_SAME = {"name", "type", "blobs", "blobs_lr", "weight_decay"}

V1_PARAM_SPEC = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}
"""V1's repeated fields for learnable blobs, and the fields of V2's param block."""
DATA_LAYERS = {
    "DATA": "data_param", "IMAGE_DATA": "image_data_param", "VIDEO_DATA": "image_data_param",
    "WINDOW_DATA": "window_data_param",
}  # fmt: skip
TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")
SOLVER_TYPES = {kind.upper(): kind for kind in ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")}
