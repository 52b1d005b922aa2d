"""NetSpec: what it writes, what pycaffe's scripts rely on, coord_map's arithmetic and crops."""

# ruff: noqa: C408  (dict(lr_mult=1) is how pycaffe's scripts write it)

from __future__ import annotations

import re

import numpy as np
import pytest

import minicaffe
import minicaffe as caffe
from minicaffe import layers as L
from minicaffe import params as P
from minicaffe.errors import Error, NetSpecError
from minicaffe.formats.prototxt import parse_net
from minicaffe.pycaffe.coord_map import (
    AxisMismatchException,
    UndefinedMapException,
    compose,
    coord_map,
    coord_map_from_to,
    crop,
    inverse,
)
from minicaffe.pycaffe.net_spec import Function, NetSpec, param_name_dict, to_proto

LENET = """
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.5 }
  data_param { source: "train_lmdb" batch_size: 3 backend: LMDB } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 5 weight_filler { type: "xavier" } } }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: AVE kernel_size: 2 stride: 2 } }
layer { name: "relu1" type: "ReLU" bottom: "pool1" top: "pool1" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "pool1" bottom: "label" top: "loss" loss_weight: 2 }
layer { name: "silence" type: "Silence" bottom: "label" }
"""


def test_a_spec_writes_the_prototxt() -> None:
    n = NetSpec()
    n.data, n.label = L.Data(source="train_lmdb", backend=P.Data.LMDB, batch_size=3, ntop=2, transform_param=dict(scale=0.5))
    param = [dict(lr_mult=1), dict(lr_mult=2)]
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=4, weight_filler=dict(type="xavier"), param=param)
    n["pool1"] = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.AVE)
    n.relu1 = L.ReLU(n.pool1, in_place=True)
    n.loss = L.SoftmaxWithLoss(n.relu1, n.label, loss_weight=2)
    n.silence = L.Silence(n.label, ntop=0)
    assert list(n.to_proto().layer) == list(parse_net(LENET).param.layer)
    assert n.keys()[:3] == ["data", "label", "conv1"] and n.vals()[2] is n.conv1


def test_layers_that_nobody_named_are_numbered() -> None:
    data = L.Input(shape=dict(dim=[2, 3]))
    net = to_proto(L.ReLU(L.ReLU(data)), L.Sigmoid(data))
    assert [(layer.name, list(layer.top)) for layer in net.layer] == [
        ("Input1", ["Input1"]), ("ReLU1", ["ReLU1"]), ("ReLU2", ["ReLU2"]), ("Sigmoid1", ["Sigmoid1"]),
    ]  # fmt: skip
    assert L.ReLU(data).to_proto().layer[1].bottom == ["Input1"]


def test_a_net_is_made_of_a_spec() -> None:
    n = caffe.NetSpec()
    n.x = L.Input(shape=dict(dim=[2, 3]))
    n.y = L.Power(n.x, power_param=dict(scale=2), name="twice")
    net = caffe.Net(n.to_proto(), caffe.TEST)
    assert net.forward(x=np.ones((2, 3)))["y"].tolist() == [[2, 2, 2]] * 2
    assert list(net.layer_dict) == ["x", "twice"]


def test_a_spec_can_be_changed() -> None:
    n = NetSpec()
    n.x = L.Input(shape=dict(dim=[1]))
    n.y = L.ReLU(n.x, negative_slope=0.5)
    n.update("y", {"negative_slope": 0.25, "param": [{"lr_mult": 0}]})  # as SSD's model_libs freezes layers
    last = n.to_proto().layer[1]
    assert last.relu_param.negative_slope == 0.25 and last.param[0].lr_mult == 0
    del n.x
    del n["y"]
    assert n.keys() == []
    with pytest.raises(AttributeError, match='no top "x"'):
        _ = n.x


def test_a_very_deep_net() -> None:
    top = L.Input(shape=dict(dim=[1]))
    for _ in range(3000):
        top = L.ReLU(top)
    assert len(top.to_proto().layer) == 3001


def test_mistakes_name_the_layer() -> None:
    with pytest.raises(Error, match="Convolution: bottom 0 is int, not the Top of a layer"):
        L.Convolution(3)
    with pytest.raises(Error, match='Convolution layer "Convolution1": kernal_size=3'):
        L.Convolution(L.Input(), kernal_size=3).to_proto()
    with pytest.raises(AttributeError, match='no message "PoolParameter"'):
        _ = P.Pool.MAX


def test_parameter_names() -> None:
    names = param_name_dict()
    assert names["Convolution"] == "convolution" and names["ROIPooling"] == "roi_pooling" and names["LRN"] == "lrn"


def test_type_names_of_the_catalogue_are_functions_and_the_classes_are_in_it() -> None:
    for kind in minicaffe.layers.CATALOGUE:
        assert isinstance(getattr(L, kind)(L.Input()), minicaffe.net_spec.Top)
    assert L.NoLayerThatIsKnown(ntop=0).type_name == "NoLayerThatIsKnown"
    with pytest.raises(AttributeError):
        _ = L.nothing


# coord_map.


def fcn() -> NetSpec:
    """Strides of 2 and 2 by pooling, 4 by a deconvolution; the first convolution pads."""
    n = NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 3, 40, 44]))
    n.conv = L.Convolution(n.data, kernel_size=3, num_output=2, pad=20)
    n.relu = L.ReLU(n.conv, in_place=True)
    n.pool1 = L.Pooling(n.relu, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.pool2 = L.Pooling(n.pool1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.score = L.Convolution(n.pool2, convolution_param=dict(kernel_size=5, num_output=2))
    n.up = L.Deconvolution(n.score, convolution_param=dict(kernel_size=8, stride=4, num_output=2))
    return n


def test_the_crop_that_aligns_an_upscaled_map_with_its_image() -> None:
    n = fcn()
    # 20 of padding, less 1 of the kernel, 1.5 of the pools; 4 x 2 = 8 of the 5 x 5; plus 3.5 of the deconvolution:
    # the image's pixel 0 lies at 20 - 1 - 1.5 - 8 + 3.5 = 13 of the map
    axis, a, b = coord_map_from_to(n.up, n.data)
    assert (axis, np.ravel(a).tolist(), np.ravel(b).tolist()) == (1, [1], [-13])
    n.out = crop(n.up, n.data)
    layer = n.to_proto().layer[-1]
    assert (layer.type, layer.crop_param.axis, list(layer.crop_param.offset)) == ("Crop", 2, [13])
    net = caffe.Net(n.to_proto(), caffe.TEST)
    assert net.blobs["out"].shape == (1, 2, 40, 44)


def test_maps_compose_and_invert() -> None:
    one, two = (1, 2.0, 3.0), (1, 0.5, -1.0)
    assert compose(one, two) == (1, 1.0, 1.0)
    assert compose(one, inverse(one)) == (1, 1.0, 0.0)
    assert compose((None, 1, 0), one) == one
    with pytest.raises(AxisMismatchException, match="axis 1 on, the other from axis 2"):
        compose(one, (2, 1.0, 0.0))


def test_crops_that_cannot_be() -> None:
    n = fcn()
    with pytest.raises(Error, match=r"the scales differ by \[4\.0\]"):
        crop(n.score, n.data)
    with pytest.raises(Error, match=r"the offset \[-1\.0\] is negative"):
        crop(L.Convolution(n.data, kernel_size=3, num_output=1), n.data)
    with pytest.raises(Error, match="not a whole number of pixels"):
        crop(L.Convolution(n.data, kernel_size=2, pad=1, num_output=1), n.data)
    with pytest.raises(Error, match="no map between the tops"):
        crop(n.up, L.Input())
    with pytest.raises(UndefinedMapException, match="InnerProduct does not map coordinates"):
        coord_map(L.InnerProduct(n.data).fn)
    with pytest.raises(Error, match="coordinates need kernel_size, stride and pad, not kernel_h"):
        coord_map(L.Convolution(n.data, kernel_h=2).fn)
    with pytest.raises(Error, match="coordinates need a kernel_size"):
        coord_map(L.Convolution(n.data).fn)


def test_a_crop_s_own_map() -> None:
    data = L.Input()
    axis, a, b = coord_map(Function("Crop", (data, data), {"crop_param": {"axis": 2, "offset": [3, 5]}}))
    assert (axis, a, b.tolist()) == (1, 1, [-3, -5])


def test_deconvolution_takes_the_fields_of_convolution_param() -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape=dict(dim=[1, 3, 4, 4]))
    n.up = L.Deconvolution(n.data, num_output=256, kernel_size=2, stride=2, param=dict(lr_mult=0))
    layer = n.to_proto().layer[1]
    assert (layer.type, layer.convolution_param.num_output, layer.convolution_param.stride) == ("Deconvolution", 256, [2])


@pytest.mark.parametrize(
    ("type_name", "reason"),
    [
        ("Convolution", "convolution_param and the layer have no field num_outputs; write MESSAGE_param=dict"),
        ("Convolution", "(num_outputs=...) for another message; did you mean num_output?"),
        ("LSTM", "LSTM has no message of its own, and the layer has no field num_outputs; write MESSAGE_param"),
        ("LSTM", "did you mean num_output?"),
        ("Split", "Split has no message of its own, and the layer has no field num_outputs; write MESSAGE_param=dict"),
    ],
)
def test_a_field_that_fits_no_message_says_why(type_name: str, reason: str) -> None:
    top = getattr(L, type_name)(L.Input(shape=dict(dim=[1, 3, 4, 4])), num_outputs=2)
    with pytest.raises(Error, match=re.escape(reason)):
        minicaffe.to_proto(top)


@pytest.mark.parametrize(
    ("type_name", "fields", "reason"),
    [
        (
            "Convolution",
            dict(convolution_param=dict(num_outputs=2)),
            "no field num_outputs in convolution_param; did you mean num_o",
        ),
        ("Convolution", dict(weight_filler=dict(tipe="xavier")), "no field tipe in weight_filler; did you mean type?"),
        ("Convolution", dict(param=[dict(lr=1)]), "no field lr in param"),
        ("Python", dict(python_param=dict(modul="m")), "no field modul in python_param; did you mean module?"),
        ("LSTM", dict(num_output=3), "the layer has no field num_output; write recurrent_param=dict(num_output=...)"),
        ("RNN", dict(num_output=3), "write recurrent_param=dict(num_output=...)"),
        ("DepthwiseConvolution", dict(num_output=3), "write convolution_param=dict(num_output=...)"),
        ("Im2col", dict(kernel_size=3), "write convolution_param=dict(kernel_size=...)"),
        ("SoftmaxWithLoss", dict(normalization=1), "write loss_param=dict(normalization=...)"),
        ("SoftmaxWithLoss", dict(axis=1), "write softmax_param=dict(axis=...)"),
        ("ImageData", dict(mean_value=[1, 2, 3]), "one mean_value, no list; write transform_param=dict(mean_value=...)"),
        ("Data", dict(crop=3), "data_param and the layer have no field crop; write MESSAGE_param=dict(crop=...)"),
    ],
)
def test_messages_name_the_message_that_takes_the_field(type_name: str, fields: dict[str, object], reason: str) -> None:
    top = getattr(L, type_name)(L.Input(shape=dict(dim=[1, 3, 4, 4])), **fields)
    with pytest.raises(NetSpecError, match=re.escape(reason)):
        minicaffe.to_proto(top)


def test_a_message_in_the_type_s_own_one() -> None:
    n = caffe.NetSpec()
    n.det = L.DetectionOutput(num_classes=3, nms_param=dict(nms_threshold=0.4, top_k=9), loss_param=dict(ignore_label=1))
    layer = n.to_proto().layer[0]
    param = layer.detection_output_param.nms_param
    assert (round(param.nms_threshold, 6), param.top_k, layer.loss_param.ignore_label) == (0.4, 9, 1)


def test_a_value_that_no_enum_has() -> None:
    with pytest.raises(AttributeError, match="PoolingParameter has no value MEDIAN: it has MAX, AVE, STOCHASTIC"):
        _ = P.Pooling.MEDIAN
    with pytest.raises(AttributeError, match="InputParameter has no value MAX: it has no enums"):
        _ = P.Input.MAX
    assert P.Pooling(pool=P.Pooling.AVE).pool == 1 and P.Pooling.PoolMethod.Name(1) == "AVE"
