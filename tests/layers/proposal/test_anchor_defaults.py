"""The defaults of a model's own generate_anchors.py in the messages of layers with another number of anchors."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Net
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.layers.proposal.anchor_defaults import own_defaults
from minicaffe.ops import generate_anchors

NET = """layer {{ name: "in" type: "Input" top: "s" top: "d" top: "i" input_param {{
  shape {{ dim: 1 dim: {0} dim: 4 dim: 4 }} shape {{ dim: 1 dim: {1} dim: 4 dim: 4 }} shape {{ dim: 1 dim: 3 }} }} }}
layer {{ name: "proposal" type: "Python" bottom: "s" bottom: "d" bottom: "i" top: "rois"
  python_param {{ module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "'feat_stride': 16" }} }}"""


def own_file(folder: Path, header: str, place: str = "generate_anchors.py") -> Path:
    """A file of Python 2 with this header, and the prototxt that it lies near."""
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"import numpy as np\nprint 'python 2'\n{header}\n    return xrange(9)\n\ndef other(a=[1]):\n    pass\n")
    net = folder / "models" / "voc" / "VGG16" / "end2end" / "test.prototxt"
    net.parent.mkdir(parents=True, exist_ok=True)
    return net


@pytest.mark.parametrize(
    ("header", "count", "scales", "ratios"),
    [
        (
            "def generate_anchors(base_size=16, ratios=[0.5, 1, 2],\n         scales=2**np.arange(2, 6)):",
            12,
            [4, 8, 16, 32],
            None,
        ),
        ("def generate_anchors(base_size=16, ratios=[1/3., 1], # two\n scales=np.array([4, 8]) * 2):", 4, [8, 16], [1 / 3, 1]),
        ("def generate_anchors(scales=[2**x for x in range(2, 6)]):", 12, [4, 8, 16, 32], None),
        ("def generate_anchors(scales=2**numpy.arange(2, 6), ratios=numpy.array([1])):", 4, [4, 8, 16, 32], [1]),
        ("def generate_anchors(ratios=(1,), scales=2**np.arange(3, 5)):", 3, [8, 16, 32], [1]),  # proposal_layer.py's scales
    ],
)
def test_the_message_gives_the_param_str(tmp_path: Path, header: str, count: int, scales: list, ratios: list | None) -> None:
    net = own_file(tmp_path, header, "lib/rpn/generate_anchors.py")
    net.write_text(NET.format(2 * count, 4 * count))
    with pytest.raises(LayerError, match=r"9 anchors need .* --allow-module rpn.proposal_layer") as error:
        Net(net, TEST)
    assert f"by {tmp_path}/lib/rpn/generate_anchors.py write" in str(error.value)
    (written,) = re.findall(r'param_str: "[^"]*"', str(error.value))
    net.write_text(net.read_text().replace("""param_str: "'feat_stride': 16\"""", written))
    expected = generate_anchors(16, ratios or [0.5, 1, 2], scales)
    np.testing.assert_array_equal(Net(net, TEST).layers[-1].anchors, expected)


@pytest.mark.parametrize(
    ("header", "listed"),
    [
        (
            "def generate_anchors(base_size=8, ratios=[1, 2], scales=[1, 2, 4, 8, 16]):",
            "base_size .8., ratios .1, 2., scales ",
        ),
        ("def generate_anchors(scales=[1, 2]):", "scales .1, 2., which do not make 12 anchors"),
    ],
)
def test_a_file_with_another_number_of_anchors(tmp_path: Path, header: str, listed: str) -> None:
    net = own_file(tmp_path, header, "models/voc/VGG16/end2end/generate_anchors.py")
    net.write_text(NET.format(24, 48))
    with pytest.raises(LayerError, match=f"generate_anchors.py has {listed}"):
        Net(net, TEST)


@pytest.mark.parametrize(
    "default",
    [
        "__import__('os').system('touch ran')",
        "9**9**9**9",
        "np.arange(0, 1e18)",
        "[2**x for x in range(99) if x]",
        "[1 for x in range(9) for y in range(9)]",
        "[[1 for y in range(9)] for x in range(9)]",
        "2**range(3)",
        "2**[x for x in range(3)]",
        "SCALES",
        "[1, 2] * 2",
        "1 / 3",
        "2**np.arange(0, 3, 0)",
        "np.array([[1, 2]])",
        "[0, 1]",
        "None",
        "-" * 1500 + "1",
        "(" * 900 + "1" + ")" * 900,
    ],
)
def test_other_defaults_are_left_out(tmp_path: Path, default: str) -> None:
    net = own_file(tmp_path, f"def generate_anchors(base_size=16, ratios={default}):")
    net.write_text("")
    found = own_defaults(net)
    assert found is None or (found.numbers == {"base_size": [16]} and found.unread == {"ratios": f"ratios={default}"})
    assert not list(Path().glob("ran"))


def test_a_net_without_such_a_file(tmp_path: Path) -> None:
    net = own_file(tmp_path, "def generate_anchors(*, a, base_size):")
    net.write_text("")
    assert own_defaults(net) is None
    assert own_defaults("<text>") is None


@pytest.mark.parametrize("default", ["SCALES", "[s for s in SCALES]"])
def test_the_message_names_a_default_that_cannot_be_read(tmp_path: Path, default: str) -> None:
    net = own_file(tmp_path, f"def generate_anchors(base_size=16, scales={default}):", "lib/rpn/generate_anchors.py")
    net.write_text(NET.format(24, 48))
    with pytest.raises(LayerError, match=re.escape(f"has the default scales={default}, which cannot be read")) as error:
        Net(net, TEST)
    assert "write param_str" not in str(error.value)


@pytest.mark.parametrize(
    ("header", "values", "other"),
    [
        ("base_size=8, ratios=[0.5, 1, 2]", {"base_size": 8}, "base_size 8, not 16"),
        ("ratios=[1, 2, 3]", {"ratios": [1, 2, 3]}, r"ratios \[1, 2, 3\], not \[0\.5, 1, 2\]"),
        ("scales=2**np.arange(2, 5)", {"scales": [4, 8, 16]}, r"scales \[4, 8, 16\], not \[8, 16, 32\]"),
    ],
)
def test_as_many_other_anchors_are_a_warning(tmp_path: Path, header: str, values: dict[str, object], other: str) -> None:
    net = own_file(tmp_path, f"def generate_anchors({header}):", "lib/rpn/generate_anchors.py")
    net.write_text(NET.format(18, 36))
    with pytest.warns(PrototxtWarning, match=f"generate_anchors.py makes other anchors: {other}; .*test.prototxt:") as warned:
        Net(net, TEST)
    (written,) = re.findall(r'param_str: "[^"]*"', str(warned[0].message))
    net.write_text(net.read_text().replace("""param_str: "'feat_stride': 16\"""", written))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = Net(net, TEST)
    np.testing.assert_array_equal(made.layers[-1].anchors, generate_anchors(**values))


def test_ratios_that_cannot_be_read_are_a_warning(tmp_path: Path) -> None:
    net = own_file(tmp_path, "def generate_anchors(ratios=RATIOS):", "lib/rpn/generate_anchors.py")
    net.write_text(NET.format(18, 36))
    with pytest.warns(PrototxtWarning, match="default ratios=RATIOS, which cannot be read"):
        Net(net, TEST)


def test_the_anchors_of_py_faster_rcnn_are_no_warning(tmp_path: Path) -> None:
    net = own_file(tmp_path, "def generate_anchors(base_size=16, ratios=[0.5, 1, 2], scales=2**np.arange(3, 6)):")
    net.write_text(NET.format(18, 36))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net(net, TEST)
