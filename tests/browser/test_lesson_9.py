"""The figure of lesson 9."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import Net
from minicaffe.formats.prototxt import parse_net
from minicaffe.tutorials import figures


def convolved(figure: figures.Figure, stride: int, pad: int) -> np.ndarray:
    net = Net(
        parse_net(f"""input: "x" input_shape {{ dim: 1 dim: 1 dim: 5 dim: 6 }}
        layer {{ name: "conv" type: "Convolution" bottom: "x" top: "y"
          convolution_param {{ num_output: 1 kernel_size: 3 stride: {stride} pad: {pad} bias_term: false }} }}""")
    )
    net.params["conv"][0].data[0, 0] = figure.data["filter"]
    top: np.ndarray = net.forward(x=np.reshape(figure.data["map"], (1, 1, 5, 6)))["y"][0, 0]
    return top


@pytest.mark.parametrize("width, scheme", [(720, "light"), (390, "dark")])
def test_im2col(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """Chosen by keys, on the top or in the matrix, a window's product is the convolution's number."""
    figure = figures.im2col()
    figure.write(tmp_path / "im2col.html")
    page = open_page(tmp_path / "im2col.html", width, 900, scheme).page
    product = page.locator("#product")

    def shown() -> float:
        return float(product.inner_text().replace("−", "-"))

    assert shown() == convolved(figure, 1, 0)[0, 0]
    page.locator(".box").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator(".box").get_attribute("aria-label").startswith("The window in row 2, column 1;")
    assert shown() == convolved(figure, 1, 0)[2, 1]
    page.get_by_label("Stride and padding").select_option(label="stride 2, padding 1")
    wanted = convolved(figure, 2, 1)
    assert wanted.shape == (3, 3)
    assert shown() == wanted[2, 1]
    matrix = page.get_by_label("The matrix, 9 rows and 9 columns").bounding_box()
    page.mouse.click(matrix["x"] + matrix["width"] * 5.5 / 9, matrix["y"] + 30)
    assert shown() == wanted[1, 2]
    top = page.get_by_label("The top;").bounding_box()
    page.mouse.click(top["x"] + top["width"] / 6, top["y"] + top["height"] / 2)
    assert shown() == wanted[1, 0]
    page.get_by_label("Stride and padding").select_option(label="stride 1, padding 1")  # the widest matrix
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
