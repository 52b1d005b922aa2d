from __future__ import annotations

import numpy as np
import pytest
from detection_case import python_layer
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import Error, LayerError
from minicaffe.formats.param_str import read_yaml


def test_the_param_strs_in_use() -> None:
    assert read_yaml("'feat_stride': 16") == {"feat_stride": 16}
    assert read_yaml("'num_classes': 21") == {"num_classes": 21}
    assert read_yaml("'feat_stride': 16 \n'scales': !!python/tuple [4, 8, 16, 32]") == {
        "feat_stride": 16,
        "scales": (4, 8, 16, 32),
    }


def test_nested_tuples_and_plain_data() -> None:
    assert read_yaml("a: !!python/tuple [1, !!python/tuple [2.5, x], [3]]") == {"a": (1, (2.5, "x"), [3])}
    assert read_yaml("") is None


def test_a_date_is_a_text() -> None:
    """Names of models and folders have dates."""
    assert read_yaml("EXP_DIR: 2016-05-01\n2001-99-99: 2001-12-14t21:59:43.10-05:00") == {
        "EXP_DIR": "2016-05-01",
        "2001-99-99": "2001-12-14t21:59:43.10-05:00",
    }


def test_as_deep_as_may_be() -> None:
    value = read_yaml("- " * 16 + "[" * 16 + "7" + "]" * 16)
    for _ in range(32):
        (value,) = value
    assert value == 7


@given(
    st.dictionaries(
        st.text("abc_", min_size=1),
        st.integers(-(2**63), 2**64 - 1) | st.booleans() | st.lists(st.floats(-9, 9)),
        max_size=4,
    )
)
def test_reads_what_yaml_writes(values: dict[str, object]) -> None:
    import yaml

    assert read_yaml(yaml.safe_dump(values)) == values


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch hacked']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object:minicaffe.blob.Blob {}",
        "!!python/object/new:tuple [[1]]",
        "PIXEL_MEANS: !!binary aGVsbG8=",
        "!!set {a, b}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!timestamp 2001-12-14",
        "%TAG ! tag:yaml.org,2002:\n---\n!set {a}",
    ],
)
def test_nothing_but_data_is_built(text: str) -> None:
    with pytest.raises(Error, match="not plain YAML: could not determine a constructor for the tag"):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "not plain YAML: while parsing"),
        ("!!python/tuple 3", "a tuple must be a list"),
        ("a: &a [1, 2]\nb: *a", r"aliases \(\*name\) are not read\s.*line 2, column 4"),
        ("[" * 5000, "nested too deeply"),
        ("".join("\n" + " " * i + "a:" for i in range(33)), "nested too deeply"),
        ("- " * 33, "nested too deeply"),
        ("? " * 32000, "nested too deeply"),
        ("- " * 17 + "[" * 16, "nested too deeply"),
        ("!!bool x", "not plain YAML: 'x'"),
        ("9" * 5000, "Exceeds the limit"),
        ("a: 0x1" + "0" * 16, r"a whole number beyond 64 bits\s.*line 1, column 4"),
        ("[5, 0x" + "f" * 20000 + "]", "a whole number beyond 64 bits"),
        (f"-{2**63 + 1}", "a whole number beyond 64 bits"),
        ("1" + ":1" * 3000, "a whole number beyond 64 bits"),
    ],
)
def test_yaml_errors(text: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("16", """param_str must be a mapping such as "'feat_stride': 16", got '16'"""),
        ("'feat_stride': [", "param_str .*: not plain YAML: while parsing"),
        ("'feat_stride': 0x" + "f" * 4000, "param_str .*: not plain YAML: a whole number beyond 64 bits"),
        ("{'feat_stride': 16, 'scales': [0x" + "f" * 400 + "]}", "param_str .*: not plain YAML: a whole number beyond"),
        ("!!python/name:os.system", "param_str '!!python/name:os.system': not plain YAML: could not determine"),
    ],
)
def test_layer_errors(text: str, message: str) -> None:
    layer = f'type: "Proposal" python_param {{ param_str: "{text}" }}'
    with pytest.raises(LayerError, match=f'Proposal layer "layer": {message}'):
        LayerCase(layer, np.zeros((1, 18, 2, 3)), np.zeros((1, 36, 2, 3)), np.zeros((1, 3)))


def test_a_bool_is_no_number() -> None:
    with pytest.raises(LayerError, match="param_str: num_classes must be a whole number > 0, got True"):
        LayerCase(python_layer("RoIData", num_classes=True), tops=3)


def test_a_text_too_long_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(Error, match=r"the text has 65,537 characters, and at most 65,536 are read"):
        read_yaml("'" + "a" * 65535 + "'")
    assert read_yaml("'" + "a" * 65534 + "'") == "a" * 65534
