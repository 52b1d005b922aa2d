"""Names that a net has not, and writing where nothing can be written."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

import minicaffe
from minicaffe.blob import Blob, BlobList
from minicaffe.errors import Error, LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layer import Layer
from minicaffe.parameters import Blobs, UnknownNameError, check_names, names_near

TEXT = """
input: "data" input_shape { dim: 2 dim: 3 } input: "im_info" input_shape { dim: 1 dim: 3 }
layer { name: "conv1" type: "InnerProduct" bottom: "data" top: "conv1" inner_product_param { num_output: 5 } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "relu1" }
"""


@pytest.fixture
def net() -> minicaffe.Net:
    return minicaffe.Net(parse_net(TEXT), minicaffe.TEST)


def test_a_name_that_is_not_there(net: minicaffe.Net) -> None:
    with pytest.raises(KeyError, match=r'^the net has no blob "cnv"; did you mean "conv1"\?$'):
        net.blobs["cnv"]
    with pytest.raises(UnknownNameError, match=r'^the net has no layer with weights "conv2"; did you mean "conv1"\?$'):
        net.params["conv2"]
    with pytest.raises(Error, match=r'^the net has no layer "relu"; did you mean "relu1"\?$'):
        net.layer_dict["relu"]
    with pytest.raises(KeyError, match=r'^the net has no blob "qqq"; there are "data", "im_info", "conv1", "relu1"$'):
        net.blobs["qqq"]
    with pytest.raises(Error, match=r'^the net has no layer "qqq"; there are .*"conv1", "relu1"$'):
        net.forward(end="qqq")
    with pytest.raises(Error, match=r'^the net has no blob "qqq"; there are "data", '):
        net.forward(blobs=["qqq"])
    assert names_near("qqq", map(str, range(11))) == '; there are "0", "1", "2", "3", "4", "5", "6", "7" and 3 more'
    assert (names_near("qqq", ["x"]), names_near("qqq", [])) == ('; there is "x"', "")
    assert net.blobs.get("cnv") is None and "cnv" not in net.blobs and net.blobs.pop("cnv", 1) == 1


def test_copies_are_of_the_same_kind(net: minicaffe.Net) -> None:
    assert isinstance(net.blobs.copy(), Blobs) and list(net.blobs.copy()) == list(net.blobs)
    with pytest.raises(UnknownNameError, match=r"^no blob"):
        raise pickle.loads(pickle.dumps(UnknownNameError('no blob "x"')))


def test_what_is_missing_is_named(net: minicaffe.Net) -> None:
    x = np.zeros((2, 3))
    with pytest.raises(Error, match=r"\['data'\] do not match the net's inputs \['data', 'im_info'\]; missing: im_info$"):
        net.forward(data=x)
    with pytest.raises(Error, match=r'missing: im_info; "imm_info" is none of them, did you mean "im_info"\?$'):
        net.forward(data=x, imm_info=x[:1])
    with pytest.raises(Error, match=r"missing: data, im_info$"):
        net.forward_all()
    with pytest.raises(Error, match=r'top diffs .*; missing: im_info, relu1; "q" is none of them$'):
        net.backward(q=x)
    check_names(iter(["b", "a"]), ["a", "b"], "inputs", "its")


@pytest.mark.parametrize("name", ["data", "diff"])
def test_a_blob_s_arrays_are_written_to_not_replaced(name: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"only written to: blob.{name}[...] = values")):
        setattr(Blob((2, 3)), name, 1)


def test_a_blob_is_not_replaced_by_numbers(net: minicaffe.Net) -> None:
    with pytest.raises(TypeError, match=re.escape('write blobs["data"].data[...] = values')):
        net.blobs["data"] = np.zeros((2, 3))  # type: ignore[assignment]
    with pytest.raises(TypeError, match=re.escape('write params["conv1"][0].data[...] = values')):
        net.params["conv1"] = np.zeros((5, 3))  # type: ignore[assignment]
    with pytest.raises(TypeError, match=re.escape("write blobs[1].data[...] = values")):
        net.params["conv1"][1] = np.zeros(5)
    net.blobs["data"] = Blob((2, 3))
    blobs = BlobList()
    blobs[:] = [Blob((4,)), Blob((5,))]
    blobs[0] = blobs[1]
    assert blobs[0].shape == (5,)


def test_an_option_of_check_gradient_that_is_none() -> None:
    with pytest.raises(TypeError, match=r'^check_gradient has no option "tolerence"; did you mean "tolerance"\?$'):
        minicaffe.check_gradient('type: "TanH" bottom: "x" top: "y"', np.zeros((2, 3)), tolerence=1)
    with pytest.raises(TypeError, match=r'no option "q"; its options are bottom_indices, step, tolerance'):
        minicaffe.check_gradient('type: "TanH" bottom: "x" top: "y"', np.zeros((2, 3)), q=1)


class Half(Layer):
    def forward(self, bottom, top):  # type: ignore[no-untyped-def]
        top[0].data[...] = bottom[0].data / 2


class HalfShapedInSetup(Half):
    def setup(self, bottom, top):  # type: ignore[no-untyped-def]
        top[0].reshape(*bottom[0].shape)


def test_a_python_layer_without_reshape() -> None:
    for kind in (Half, HalfShapedInSetup):
        minicaffe.register(kind.__name__, kind)
    text = TEXT + 'layer { name: "half" type: "Half" bottom: "data" top: "half" }'
    with pytest.raises(
        LayerError, match=r'^Half layer "half": the class Half has no reshape, so that top 0 never gets a shape'
    ):
        minicaffe.Net(parse_net(text), minicaffe.TEST)
    out = minicaffe.Net(parse_net(text.replace('type: "Half"', 'type: "HalfShapedInSetup"')), minicaffe.TEST)
    assert out.blobs["half"].shape == (2, 3)
    minicaffe.Net(parse_net(text.replace('bottom: "data" top: "half"', 'bottom: "relu1" top: "relu1"')), minicaffe.TEST)
