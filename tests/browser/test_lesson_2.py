"""The figure of lesson 2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import TEST, Net
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.receptive_fields import receptive_field
from minicaffe.tutorials import figures

CHAIN = """
input: "data" input_shape { dim: 1 dim: 3 dim: 40 dim: 61 }
layer { name: "one" type: "Convolution" bottom: "data" top: "one"
  convolution_param { num_output: 2 kernel_size: 3 pad: 1 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "two" type: "Convolution" bottom: "one" top: "two"
  convolution_param { num_output: 2 kernel_size: 3 pad: 2 dilation: 2 weight_filler { type: "xavier" } } }
layer { name: "three" type: "Convolution" bottom: "two" top: "three"
  convolution_param { num_output: 2 kernel_size: 5 pad: 2 stride: 2 weight_filler { type: "xavier" } } }
"""


@pytest.mark.parametrize("width, scheme", [(740, "light"), (390, "dark")])
def test_receptive_fields(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """A cell chosen by keys and one chosen by mouse have the fields that minicaffe follows through the net."""
    net = Net(parse_net(CHAIN), TEST, keep="all")
    image = np.random.default_rng(0).integers(0, 256, (40, 61, 3)).astype(np.uint8)
    net.forward(data=image.astype(np.float32).transpose(2, 0, 1)[None])
    figures.receptive_fields(net, image, ["one", "two", "three"]).write(tmp_path / "fields.html")
    page = open_page(tmp_path / "fields.html", width, 800, scheme).page
    cells = page.locator("svg[tabindex]")

    def compare(name: str, row: int, column: int) -> None:
        assert f"cell ({row}, {column}) of {name};" in cells.get_attribute("aria-label")
        field = receptive_field(net, name, row, column)["data"]
        assert page.locator("#field").inner_text() == f"{len(field.rows)} × {len(field.columns)}"
        share = 100 * len(field.rows) * len(field.columns) / (40 * 61)
        assert page.locator("#share").inner_text() == f"{share:.1f} %"

    compare("three", 5, 8)
    assert page.locator("#size").inner_text() == str(3 + 8 + 8)
    cells.focus()
    for key in ("ArrowLeft", "Shift+ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    compare("three", 1, 7)
    page.get_by_label("Layer").fill("1")
    place = cells.bounding_box()
    page.mouse.click(place["x"] + 0.99 * place["width"], place["y"] + 0.3 * place["height"])
    compare("one", 6, 30)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
