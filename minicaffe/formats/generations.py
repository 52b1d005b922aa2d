"""What the older generations of Caffe called things, and what they are called today."""

from __future__ import annotations

# V1's enum name, V2's type; V0's type where there was one.
_TYPES = [
    ("ABSVAL", "AbsVal", ""),
    ("ACCURACY", "Accuracy", "accuracy"),
    ("ARGMAX", "ArgMax", ""),
    ("BNLL", "BNLL", "bnll"),
    ("CONCAT", "Concat", "concat"),
    ("CONTRASTIVE_LOSS", "ContrastiveLoss", ""),
    ("CONVOLUTION", "Convolution", "conv"),
    ("DATA", "Data", "data"),
    ("DECONVOLUTION", "Deconvolution", ""),
    ("DROPOUT", "Dropout", "dropout"),
    ("DUMMY_DATA", "DummyData", ""),
    ("ELTWISE", "Eltwise", ""),
    ("EUCLIDEAN_LOSS", "EuclideanLoss", "euclidean_loss"),
    ("EXP", "Exp", ""),
    ("FLATTEN", "Flatten", "flatten"),
    ("HDF5_DATA", "HDF5Data", "hdf5_data"),
    ("HDF5_OUTPUT", "HDF5Output", "hdf5_output"),
    ("HINGE_LOSS", "HingeLoss", ""),
    ("IM2COL", "Im2col", "im2col"),
    ("IMAGE_DATA", "ImageData", "images"),
    ("INFOGAIN_LOSS", "InfogainLoss", "infogain_loss"),
    ("INNER_PRODUCT", "InnerProduct", "innerproduct"),
    ("LRN", "LRN", "lrn"),
    ("MEMORY_DATA", "MemoryData", ""),
    ("MULTINOMIAL_LOGISTIC_LOSS", "MultinomialLogisticLoss", "multinomial_logistic_loss"),
    ("MVN", "MVN", ""),
    ("NONE", "", ""),
    ("POOLING", "Pooling", "pool"),
    ("POWER", "Power", ""),
    ("RELU", "ReLU", "relu"),
    ("SIGMOID", "Sigmoid", "sigmoid"),
    ("SIGMOID_CROSS_ENTROPY_LOSS", "SigmoidCrossEntropyLoss", ""),
    ("SILENCE", "Silence", ""),
    ("SLICE", "Slice", ""),
    ("SOFTMAX", "Softmax", "softmax"),
    ("SOFTMAX_LOSS", "SoftmaxWithLoss", "softmax_loss"),
    ("SPLIT", "Split", "split"),
    ("TANH", "TanH", "tanh"),
    ("THRESHOLD", "Threshold", ""),
    ("WINDOW_DATA", "WindowData", "window_data"),
]
V1_TYPES = {v1: v2 for v1, v2, _ in _TYPES}
V0_TYPES = {v0: v1 for v1, _, v0 in _TYPES if v0}

# V0's field -> V0's type -> where V1 keeps it; "*" is every type.
V0_FIELDS: dict[str, dict[str, str]] = {
    "num_output": {"conv": "convolution_param.num_output", "innerproduct": "inner_product_param.num_output"},
    "biasterm": {"conv": "convolution_param.bias_term", "innerproduct": "inner_product_param.bias_term"},
    "weight_filler": {"conv": "convolution_param.weight_filler", "innerproduct": "inner_product_param.weight_filler"},
    "bias_filler": {"conv": "convolution_param.bias_filler", "innerproduct": "inner_product_param.bias_filler"},
    "pad": {"conv": "convolution_param.pad", "pool": "pooling_param.pad"},
    "kernelsize": {"conv": "convolution_param.kernel_size", "pool": "pooling_param.kernel_size"},
    "group": {"conv": "convolution_param.group"},
    "stride": {"conv": "convolution_param.stride", "pool": "pooling_param.stride"},
    "pool": {"pool": "pooling_param.pool"},
    "dropout_ratio": {"dropout": "dropout_param.dropout_ratio"},
    "local_size": {"lrn": "lrn_param.local_size"},
    "alpha": {"lrn": "lrn_param.alpha"},
    "beta": {"lrn": "lrn_param.beta"},
    "k": {"lrn": "lrn_param.k"},
    "source": {
        "data": "data_param.source",
        "hdf5_data": "hdf5_data_param.source",
        "images": "image_data_param.source",
        "window_data": "window_data_param.source",
        "infogain_loss": "infogain_loss_param.source",
    },
    "scale": {"*": "transform_param.scale"},
    "meanfile": {"*": "transform_param.mean_file"},
    "batchsize": {
        "data": "data_param.batch_size",
        "hdf5_data": "hdf5_data_param.batch_size",
        "images": "image_data_param.batch_size",
        "window_data": "window_data_param.batch_size",
    },
    "cropsize": {"*": "transform_param.crop_size"},
    "mirror": {"*": "transform_param.mirror"},
    "rand_skip": {"data": "data_param.rand_skip", "images": "image_data_param.rand_skip"},
    "det_fg_threshold": {"window_data": "window_data_param.fg_threshold"},
    "det_bg_threshold": {"window_data": "window_data_param.bg_threshold"},
    "det_fg_fraction": {"window_data": "window_data_param.fg_fraction"},
    "det_context_pad": {"window_data": "window_data_param.context_pad"},
    "det_crop_mode": {"window_data": "window_data_param.crop_mode"},
    "new_height": {"images": "image_data_param.new_height"},
    "new_width": {"images": "image_data_param.new_width"},
    "shuffle_images": {"images": "image_data_param.shuffle"},
    "concat_dim": {"concat": "concat_param.concat_dim"},
    "hdf5_output_param": {"hdf5_output": "hdf5_output_param"},
}
V0_SAME = {"name", "type", "blobs", "blobs_lr", "weight_decay"}

# V1's repeated fields for learnable blobs -> the field of V2's param block.
V1_PARAM_SPEC = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}

DATA_LAYERS = {"DATA": "data_param", "IMAGE_DATA": "image_data_param", "WINDOW_DATA": "window_data_param"}
TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")

SOLVER_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}
