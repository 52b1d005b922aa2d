"""Splits behind blobs with several readers, and which layers a net's state keeps."""

from __future__ import annotations

import pytest

from minicaffe import TEST, TRAIN, LayerError, Net
from minicaffe.formats.prototxt import parse_net

DATA = 'layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }\n'


def relu(name: str, bottom: str, top: str, more: str = "") -> str:
    return f'layer {{ name: "{name}" type: "ReLU" bottom: "{bottom}" top: "{top}" {more} }}\n'


def made(text: str, *arguments: object) -> Net:
    return Net(parse_net(text, "made.prototxt"), *(arguments or (TEST,)))


def test_two_readers_get_a_split() -> None:
    net = made(DATA + relu("a", "data", "x") + relu("b", "data", "y"))
    assert net._layer_names == ["in", "data_in_0_split", "a", "b"]
    assert net.bottom_names["a"] == ["data_in_0_split_0"]
    assert net.bottom_names["b"] == ["data_in_0_split_1"]
    net.blobs["data"].data[...] = 3
    assert (net.forward()["y"] == 3).all()


def test_one_reader_or_a_chain_in_place_gets_none() -> None:
    assert made(DATA + relu("a", "data", "x")).layers[1].param.type == "ReLU"
    chain = DATA + relu("a", "data", "x") + relu("b", "x", "x") + relu("c", "x", "y") + relu("d", "x", "z")
    assert made(chain)._layer_names == ["in", "a", "b", "x_b_0_split", "c", "d"]


def test_a_loss_weight_is_a_reader_and_moves_to_the_split() -> None:
    net = made(DATA + relu("a", "data", "x", "loss_weight: 3") + relu("b", "x", "y"), TRAIN)
    assert net._layer_names == ["in", "a", "x_a_0_split", "b"]
    assert {name: weight for name, weight in net.blob_loss_weights.items() if weight} == {"x_a_0_split_0": 3}


def test_the_gradient_is_the_sum_over_readers() -> None:
    text = "force_backward: true " + DATA + relu("a", "data", "x", "loss_weight: 2") + relu("b", "data", "y", "loss_weight: 5")
    net = made(text, TRAIN)
    net.blobs["data"].data[...] = 1
    net.forward_backward()
    assert (net.blobs["data"].diff == 7).all()


def test_a_bottom_made_later() -> None:
    message = (
        r'bottom "x" is not produced by any layer before it; layer "a" makes it, but only after this one \(made.prototxt:2\)'
    )
    with pytest.raises(LayerError, match=message):
        made(DATA + relu("b", "x", "y") + relu("a", "data", "x"))


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        ("include { phase: TRAIN }", r'; layer "in" makes it, in phase TRAIN only \(--phase TRAIN\)'),
        ("exclude { phase: TEST }", r'; layer "in" makes it, in phase TRAIN only \(--phase TRAIN\)'),
        ('include { stage: "a" }', r'; layer "in" makes it, but its rules ask for another level or stage \(--level, --stage\)'),
    ],
)
@pytest.mark.parametrize("top", ["x", "data"])
def test_a_bottom_made_in_another_state(rule: str, where: str, top: str) -> None:
    """The reader may work in place, so that its top has the same name."""
    with pytest.raises(LayerError, match=f'bottom "data" is not produced by any layer before it{where}'):
        made(DATA.replace("}\n", f"{rule} }}\n") + relu("a", "data", top))


def test_a_layer_in_place_does_not_make_its_own_bottom() -> None:
    with pytest.raises(LayerError, match=r'bottom "x" is not produced by any layer before it \(made.prototxt:2\)'):
        made(DATA + relu("a", "x", "x"))


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("include { phase: TRAIN }", "no yes no"),
        ("exclude { phase: TRAIN }", "yes no yes"),
        ("include { min_level: 1 }", "no no yes"),
        ("include { max_level: 0 }", "yes yes no"),
        ('include { stage: "deploy" }', "no no yes"),
        ('include { stage: "deploy" stage: "other" }', "no no no"),
        ('include { not_stage: "deploy" }', "yes yes no"),
        ("include { phase: TRAIN } include { min_level: 2 }", "no yes yes"),
    ],
)
def test_rules(rule: str, kept: str) -> None:
    nets = [made(DATA + relu("a", "data", "x", rule), *state) for state in ((TEST,), (TRAIN,), (TEST, 2, ["deploy"]))]
    assert ["yes" if "a" in net.layer_dict else "no" for net in nets] == kept.split()


def test_include_and_exclude_together() -> None:
    with pytest.raises(LayerError, match=r'ReLU layer "a": has include and exclude rules; give one kind \(made.prototxt:2\)'):
        made(DATA + relu("a", "data", "x", "include { phase: TEST } exclude { phase: TRAIN }"))
