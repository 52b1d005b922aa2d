"""A convolution's and a pooling's number on the page, watched term by term."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, Opened, violations

from minicaffe import TEST, Net, Tracer, set_random_seed
from minicaffe.formats.prototxt import parse_net

NET = """name: "windows"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 4 dim: 7 dim: 9 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 6 group: 2
  kernel_h: 3 kernel_w: 2 stride: 2 pad: 1 weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.5 } } }
layer { name: "up" type: "Deconvolution" bottom: "data" top: "up"
  convolution_param { num_output: 2 kernel_size: 3 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "max" type: "Pooling" bottom: "data" top: "max" pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net, Tracer]:
    set_random_seed(3)
    net = Net(parse_net(NET), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(4).standard_normal(net.blobs["data"].shape)
    path = tmp_path_factory.mktemp("page") / "trace.html"
    with Tracer(net, path) as tracer:
        net.forward()
    return path, net, tracer


def opened_at(open_page: Open, path: Path, layer: str) -> Opened:
    opened = open_page(path)
    opened.layer(layer)
    opened.page.locator(".sum .views").scroll_into_view_if_needed()
    return opened


def text(page: Any) -> str:
    return str(page.locator(".sum p.mono").inner_text()).replace("−", "-")


def add(page: Any, count: int) -> None:
    page.get_by_label("Terms added").evaluate("(e, n) => { e.value = n; e.dispatchEvent(new Event('input')); }", count)


@pytest.mark.parametrize("name", ["conv", "up", "max", "mean"])
def test_every_term(traced: tuple[Path, Net, Tracer], open_page: Open, name: str) -> None:
    """What is said after each term, against sums of the blob and the weights; the last is what the layer computed."""
    path, net, tracer = traced
    opened = opened_at(open_page, path, name)
    layer = next(facts for facts in tracer.trace.layers if facts.name == name)
    assert layer.example is not None and layer.example.sum is not None
    places, page = layer.example.sum.places, opened.page
    x = np.pad(net.blobs["data"].data, ((0, 0), (0, 0), (9, 9), (9, 9)))[0]
    so_far = -np.inf if name == "max" else 0.0
    for k, (_, channel, row, column) in enumerate(places.tolist(), start=1):
        add(page, k)
        value = float(x[channel, row + 9, column + 9])
        weight = 1.0 if layer.example.sum.weight is None else float(layer.example.sum.weight[k - 1])
        so_far = max(so_far, value) if name == "max" else so_far + value * weight
        said = text(page)
        assert f"data[{channel}, {row}, {column}] = " in said
        found = re.search(r"of (\d+) of (\d+) is (\S+?)(;|$)", said)
        assert found and (int(found[1]), int(found[2])) == (k, len(places))
        assert float(found[3]) == pytest.approx(so_far, rel=1e-5, abs=1e-6)
        drawn = page.locator("[data-taps=product] rect.read" if name in ("conv", "up") else "[data-taps=x] rect.read").count()
        assert drawn == sum(places[:k, 1] == channel)
    result = float(text(page).split("the layer's: ")[1])
    assert result == pytest.approx(float(net.blobs[name].data[layer.example.at]), rel=1e-6)
    said = re.findall(r"it is (\S+?);", text(page))
    assert len(said) == {"conv": 1, "up": 1, "max": 0, "mean": 1}[name]
    assert float(said[-1]) == pytest.approx(result, rel=1e-5) if said else so_far == pytest.approx(result)


def test_the_window_lies_where_the_layer_reads(traced: tuple[Path, Net, Tracer], open_page: Open) -> None:
    """Rows 2 i - 1 to 2 i + 1 and columns 2 j - 1 to 2 j, the last term at its end; with padding the stage shows it."""
    path, _, tracer = traced
    page = opened_at(open_page, path, "conv").page
    example = next(facts.example for facts in tracer.trace.layers if facts.name == "conv")
    assert example is not None
    _, _, i, j = example.at
    window = page.locator(".sum [data-window]").get_attribute("data-window")
    assert window == f"{2 * i - 1},{2 * j - 1},{2 * i + 2},{2 * j + 1}"
    assert page.locator(".sum .winner").count() == 0
    assert opened_at(open_page, path, "max").page.locator(".sum .winner").count() == 1


def test_play_pause_step_and_keys(traced: tuple[Path, Net, Tracer], open_page: Open, axe: str) -> None:
    page = opened_at(open_page, traced[0], "conv").page
    card = page.locator(".sum")
    assert card.get_attribute("data-done") == "12", "2 channels of its group, 3 x 2 taps"
    page.get_by_label("No term").focus()
    page.keyboard.press("Enter")
    page.get_by_label("One step on").focus()
    page.keyboard.press("Enter")
    assert card.get_attribute("data-done") == "1"
    page.get_by_label("Step of the sum").select_option("channel")
    page.keyboard.press("Tab")
    page.get_by_label("One step on").click()
    assert card.get_attribute("data-done") == "6"
    page.get_by_label("Step of the sum").select_option("term")
    page.get_by_label("Speed of the sum").select_option("4")
    page.get_by_label("Play the sum").click()
    page.wait_for_function("+document.querySelector('.sum').dataset.done > 7")
    page.get_by_label("Pause the sum").click()
    stopped = int(card.get_attribute("data-done"))
    page.wait_for_timeout(400)
    assert int(card.get_attribute("data-done")) == stopped < 12
    page.get_by_label("Terms added").focus()
    page.keyboard.press("ArrowLeft")
    assert int(card.get_attribute("data-done")) == stopped - 1
    assert violations(page, axe) == []
    page.get_by_label("Play the sum").click()
    page.wait_for_function("document.querySelector('.sum').dataset.done === '12'")
    page.get_by_label("Play the sum").wait_for()
    page.get_by_label("Play the sum").click()  # from the first term, as all are added
    page.wait_for_function("+document.querySelector('.sum').dataset.done < 12")


def test_nothing_plays_where_less_motion_is_wished(traced: tuple[Path, Net, Tracer], chromium: Any) -> None:
    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(traced[0].as_uri() + "#layer=conv")
    page.locator(".sum .views").wait_for()
    assert not page.locator(".sum .play").is_visible()
    page.get_by_label("One step back").click()
    assert page.locator(".sum").get_attribute("data-done") == "11"
    context.close()
