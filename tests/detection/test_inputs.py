"""Generated values of inputs that the layers reading them restrict."""

from __future__ import annotations

import numpy as np

from minicaffe.detection.inputs import fill_inputs
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net

TEXT = """
input: "words" input_shape { dim: 4 dim: 2 }
input: "begins" input_shape { dim: 4 dim: 2 }
input: "chosen" input_shape { dim: 7 }
input: "target" input_shape { dim: 7 }
layer { name: "e" type: "Embed" bottom: "words" top: "e" embed_param { input_dim: 10 num_output: 3 } }
layer { name: "l" type: "LSTM" bottom: "e" bottom: "begins" top: "h" recurrent_param { num_output: 5 } }
layer { name: "c" type: "BatchReindex" bottom: "h" bottom: "chosen" top: "rows" }
layer { name: "f" type: "InnerProduct" bottom: "rows" top: "f" inner_product_param { num_output: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "target" top: "loss" }
"""


def test_generated_values_suit_the_layers_that_read_them() -> None:
    net = Net(parse_net(TEXT).param)
    notes = fill_inputs(net, {})
    words, begins, chosen, target = (net.blobs[name].data for name in ("words", "begins", "chosen", "target"))
    for values, below in ((words, 10), (chosen, 4)):
        assert (values == np.floor(values)).all() and values.min() >= 0 and values.max() < below
    assert len(np.unique(words)) > 2
    assert begins.tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]
    assert not target.any()
    net.forward()
    assert notes[0] == "input words not given: random whole numbers below 10 of shape (4, 2) (seed 0)"
