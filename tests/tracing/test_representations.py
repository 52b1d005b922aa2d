"""What notebooks show: the HTML of a net, a blob and a Tracer."""

from __future__ import annotations

import base64
import io
import re
from html import unescape

import numpy as np
import pytest
from PIL import Image

from minicaffe import TEST, Blob, Net, Tracer
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.trace_page import page

NET = """name: "a <small> net"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 4 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 7 } }
"""


def picture_of(html: str) -> np.ndarray:
    """The picture in a blob's HTML."""
    found = re.search(r"data:image/png;base64,([^\"]+)", html)
    assert found
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1]))))


def test_a_net_is_a_table_of_layers_and_shapes() -> None:
    html = Net(parse_net(NET), TEST)._repr_html_()
    assert "a &lt;small&gt; net, TEST: 2 layers, 427 parameters" in html
    assert "<td>InnerProduct</td><td>data</td><td>ip 2 × 7</td><td>7 × 60 7</td>" in html


def test_a_blob_shows_shape_statistics_and_maps() -> None:
    blob = Blob((2, 3, 4, 5))
    blob.data[0, 1, :, :] = np.arange(20).reshape(4, 5)
    html = blob._repr_html_()
    assert "Blob 2 × 3 × 4 × 5, float32" in html
    assert "<td>19</td>" in html
    assert "<td>diff</td>" not in html
    sheet = picture_of(html)
    assert sheet.shape == (5, 18, 3)
    assert (sheet[0, 6].tolist(), sheet[3, 10].tolist()) == ([0, 0, 0], [255, 236, 196])  # 0 and the greatest


def test_a_blobs_nan_stands_out_and_its_diff_is_shown_once_it_is_there() -> None:
    blob = Blob((1, 1, 3, 2))
    blob.data[0, 0, 1, 1] = np.nan
    blob.diff[...] = 4
    html = blob._repr_html_()
    assert "<b>1 NaN, 0 infinite</b>" in html
    assert "<td>diff</td><td>4</td>" in html
    assert picture_of(html)[1, 1].tolist() == [255, 0, 255]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 3, 4, 5)])
def test_blobs_without_maps_have_no_picture(shape: tuple[int, ...]) -> None:
    html = Blob(shape)._repr_html_()
    assert "<img" not in html
    assert "Blob" in html


def test_looking_at_a_blob_changes_nothing() -> None:
    blob = Blob((1, 2, 3, 4))
    before = blob.data_state
    blob._repr_html_()
    assert blob.data_state is before


def test_a_tracer_is_its_page_in_a_frame() -> None:
    net = Net(parse_net(NET), TEST)
    with Tracer(net) as tracer:
        net.forward()
    html = tracer._repr_html_()
    found = re.search(r'srcdoc="([^"]*)"', html)
    assert found
    assert unescape(found[1]) == page(tracer.trace)
