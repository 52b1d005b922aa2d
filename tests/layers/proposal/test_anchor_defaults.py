"""The defaults of a model's own generate_anchors.py in the messages of layers with another number of anchors."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from own_anchors import HEADER, known, own_text, write_own  # noqa: F401 (a fixture)

from minicaffe import TEST, Net
from minicaffe.data.settings import DetectionSettings, read_settings, with_anchors
from minicaffe.errors import Error, LayerError, PrototxtWarning
from minicaffe.layers.proposal.anchor_defaults import own_defaults, read_anchors
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


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("header", "constants", "numbers"),
    [
        (HEADER, "", {"base_size": [16], "ratios": [0.5, 1, 2], "scales": [8, 16, 32]}),
        ("def generate_anchors(base_size=8, scales=np.arange(3, 15, 3)):", "", {"base_size": [8], "scales": [3, 6, 9, 12]}),
        ("def generate_anchors(scales=np.array([1, 4, 9])):", "", {"scales": [1, 4, 9]}),
        (
            "def generate_anchors(ratios=RATIOS,\n scales=SCALES):",
            "SIZE = 2\n# SCALES = [1]\nSCALES = [\n  SIZE, # 2\n  SIZE * 4]\nRATIOS = (0.25,)\n",
            {"ratios": [0.25], "scales": [2, 8]},
        ),
        ("def generate_anchors(scales=A):", "A = [1]\nA = [2, 3]\n", {"scales": [2, 3]}),
    ],
)
def test_the_forms_of_published_files(tmp_path: Path, header: str, constants: str, numbers: dict[str, list[float]]) -> None:
    assert read_anchors(write_own(tmp_path / "generate_anchors.py", header, constants)) == numbers


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("header", "constants", "says"),
    [
        (
            "def generate_anchors(base_size=16,\n    scales=cfg.SCALES):",
            "",
            r":4: the default scales=cfg.SCALES cannot be read",
        ),
        ("def generate_anchors(scales=A):", "A = B\nB = A\n", ":5: the default scales=A cannot be read"),
        ("def generate_anchors(scales=A):", "A = open('x')\n", ":4: the default scales=A cannot be read"),
        ("def generate_anchors(base_size=[8, 16]):", "", r":3: base_size must be a whole number, got [8, 16]"),
        ("def generate_anchors(base_size=16.5):", "", r":3: base_size must be a whole number, got [16.5]"),
        ("def generate_anchors(stride=16):", "", ":3: generate_anchors has no defaults of base_size, ratios, scales"),
        ("def anchors(scales=[1]):", "", ": has no function generate_anchors"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, header: str, constants: str, says: str) -> None:
    file = write_own(tmp_path / "generate_anchors.py", header, constants)
    with pytest.raises(
        Error, match=f"{re.escape(str(file) + says)}.*; write the numbers in the prototxt's param_str, or as ANCHOR"
    ):
        read_anchors(file)


@pytest.mark.usefixtures("known")
def test_another_formula_is_refused(tmp_path: Path) -> None:
    file, text = tmp_path / "generate_anchors.py", own_text()
    file.write_text(
        text.replace("xrange", "range").replace("Doc = string", "Other").replace("# a comment", "").replace("    ", "  ")
    )
    assert read_anchors(file)["scales"] == [8, 16, 32], "comments, docstrings and spaces are not compared"
    for old, new, name in (("np.round(3)", "np.ceil(3)", "_ratio_enum"), ("np.round(0)", "0", "generate_anchors")):
        file.write_text(text.replace(old, new))
        line = text.split("\n").index(next(row for row in text.split("\n") if row.startswith(f"def {name}("))) + 1
        with pytest.raises(Error, match=rf"generate_anchors.py:{line}: {name} differs .* --allow-module rpn.proposal_layer"):
            read_anchors(file)
    file.write_text(text.replace("def _mkanchors", "def _made"))
    with pytest.raises(Error, match=r"generate_anchors.py:3: _mkanchors differs from"):
        read_anchors(file)


def test_settings_give_what_param_str_lacks(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET.format(8, 16))
    settings = with_anchors(DetectionSettings(), {"base_size": [8], "ratios": [0.5, 2], "scales": [1, 3]})
    made = Net(net, TEST, settings=settings)
    np.testing.assert_array_equal(made.layers[-1].anchors, generate_anchors(8, [0.5, 2], [1, 3]))
    net.write_text(NET.format(8, 16).replace("'feat_stride': 16", "{feat_stride: 16, scales: [2, 5], base_size: 4}"))
    made = Net(net, TEST, settings=settings)
    np.testing.assert_array_equal(made.layers[-1].anchors, generate_anchors(4, [0.5, 2], [2, 5]))


def test_proposal_layers_own_scales_replace_those_that_do_not_fit(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET.format(12, 24))
    settings = with_anchors(DetectionSettings(), {"ratios": [0.5, 2], "scales": [1, 3]})
    made = Net(net, TEST, settings=settings)
    np.testing.assert_array_equal(made.layers[-1].anchors, generate_anchors(16, [0.5, 2], [8, 16, 32]))
    net.write_text(NET.format(10, 20))
    with pytest.raises(LayerError, match=r"4 anchors need scores of shape \(1, 8, H, W\), got \(1, 10, 4, 4\)"):
        Net(net, TEST, settings=settings)


def test_settings_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.yml").write_text("ANCHOR_SCALES: [1, 3]\nANCHOR_RATIOS: [0.5, 2]\nANCHOR_BASE_SIZE: 8\n")
    (tmp_path / "net.prototxt").write_text(NET.format(8, 16))
    made = Net(tmp_path / "net.prototxt", TEST, settings=read_settings(tmp_path / "net.yml"))
    np.testing.assert_array_equal(made.layers[-1].anchors, generate_anchors(8, [0.5, 2], [1, 3]))
