"""The page's address names what is shown: it can be kept, opened again, and gone back to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Open


def test_an_address_opens_what_it_was_of(two_layers: Path, open_page: Open) -> None:
    first = open_page(two_layers)
    first.layer("pool")
    first.page.locator(".overlay").wait_for(state="attached")
    first.put("roi", 2)
    address = first.page.evaluate("location.hash")
    assert address == "#layer=pool&step=forward&roi=2"
    again = open_page(two_layers, address=address)
    again.page.locator(".overlay").wait_for(state="attached")
    assert again.step() == "Forward pool"
    assert again.overlay()["roi"] == "2"


def test_an_address_has_the_bin_and_the_channel(two_layers: Path, open_page: Open) -> None:
    first = open_page(two_layers)
    first.select("pool", roi=1, channel=2, row=0, column=2)
    address = first.page.evaluate("location.hash")
    assert address == "#layer=pool&step=forward&roi=1&channel=2&bin=0%2C2"
    again = open_page(two_layers, address=address)
    again.page.locator(".overlay").wait_for(state="attached")
    assert (again.overlay()["roi"], again.overlay()["channel"], again.overlay()["bin"]) == ("1", "2", "0,2")


@pytest.mark.parametrize("place", ["roi=99&channel=99&bin=99,99", "bin=x,-1&channel=-2", "bin=1", "bin=,&channel="])
def test_a_place_outside_is_the_nearest_one(two_layers: Path, open_page: Open, place: str) -> None:
    opened = open_page(two_layers, address=f"#layer=pool&{place}")
    opened.page.locator(".overlay").wait_for(state="attached")
    shown = opened.overlay()
    assert (shown["roi"], shown["channel"], shown["bin"]) == (("2", "2", "1,2") if "99" in place else ("0", "0", "1,1"))


@pytest.mark.parametrize("address", ["#layer=none", "#", "#layer=pool&step=no&roi=-7&view=result", "#%"])
def test_what_an_address_cannot_name(two_layers: Path, open_page: Open, address: str) -> None:
    opened = open_page(two_layers, address=address)
    assert opened.step() == ("Forward pool" if "pool" in address else "Forward input")


def test_back(two_layers: Path, open_page: Open) -> None:
    opened = open_page(two_layers)
    for name in ("conv 1&2", "pool"):
        opened.page.wait_for_timeout(1100)
        opened.layer(name)
    opened.page.go_back()
    assert opened.page.locator("h2").inner_text().startswith("conv 1&2")
    opened.page.go_back()
    assert opened.page.locator("h2").inner_text().startswith("input")
    opened.page.go_forward()
    assert opened.page.locator("h2").inner_text().startswith("conv 1&2")
