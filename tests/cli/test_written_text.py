"""Text that is written with a stranger's names in it: prototxts read back as they were, pictures and tables stay whole."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner
from detecting import DETECTOR
from google.protobuf import text_format
from hostile import LINES, NAME, QUIET, WILD, stored
from hypothesis import given
from hypothesis import strategies as st
from terminal_text import foreign

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.errors import Error, on_one_line
from minicaffe.formats.prototxt import parse_message, parse_net, read_net, to_text
from minicaffe.formats.tokens import quote, unquote, visible
from minicaffe.porting.rescue import rescue
from minicaffe.porting.retarget import retarget
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import NetSpec, layers
from minicaffe.tracing.draw import draw_net
from minicaffe.tracing.representations import net_html
from minicaffe.training.solver_log import write_rows

NAMES = (
    WILD,
    LINES,
    NAME,
    'q"\\',
    "# \n#",
    "'\\n\n",
    "\udbff\udc00".encode("utf-16", "surrogatepass").decode("utf-16"),
    "\x85\u2029}",
)
ANY = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\\\"'#\n\r\t\x1b\x85\u202e\u2028{}"))
"""Whatever a string of a message may hold."""


def read_back(text: str) -> caffe_pb2.NetParameter:
    """What both readers make of it."""
    ours = parse_message(text, caffe_pb2.NetParameter())
    assert ours == text_format.Parse(text, caffe_pb2.NetParameter())
    return ours


@given(ANY, ANY)
def test_a_message_is_read_back(name: str, other: str) -> None:
    net = caffe_pb2.NetParameter(name=other)
    net.layer.add(name=name, type=other, top=[name, other]).python_param.param_str = name
    text = to_text(net)
    assert not foreign(text, terminal=False)
    assert read_back(text) == net


@given(ANY)
def test_a_quoted_text_is_read_back(text: str) -> None:
    assert unquote(quote(text), "a test").decode() == text
    assert "\n" not in quote(text) and not foreign(quote(text), terminal=False)


@given(ANY, ANY)
def test_a_prototxt_made_visible_says_the_same(name: str, comment: str) -> None:
    written = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    for bytes_ in ("", "\udcff\udc80"):
        comment = comment.replace("\n", "").replace("\r", "")
        text = f'# {comment}{bytes_}\nname: "{written}" # {bytes_}\x1b\nlayer\x0b{{\x0c}}'
        made = visible(text)
        assert parse_message(made, caffe_pb2.NetParameter()) == parse_message(text, caffe_pb2.NetParameter())
        assert not foreign(made.replace("\udcff", "").replace("\udc80", ""), terminal=False)
        assert made.count("\udcff") == 2 * bool(bytes_)


def test_a_rescued_net_has_its_layers_and_no_other(tmp_path: Path) -> None:
    """Names stand in comments too."""
    stored(str(tmp_path / "w.caffemodel"), *NAMES)
    rescued = rescue(tmp_path / "w.caffemodel")
    rescued.file = f"{LINES}.caffemodel"
    assert rescued.notes and LINES in "".join(rescued.notes) + rescued.file
    assert not foreign(rescued.text, terminal=False)
    assert read_back(rescued.text) == rescued.param
    assert {layer.name for layer in rescued.param.layer} > set(NAMES) and "live" not in {n.name for n in rescued.param.layer}


def test_an_upgraded_net_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "old.prototxt").write_text(QUIET, encoding="utf-8")
    CliRunner().invoke(
        main, ["upgrade", str(tmp_path / "old.prototxt"), str(tmp_path / "new.prototxt")], catch_exceptions=False
    )
    new = (tmp_path / "new.prototxt").read_text(encoding="utf-8")
    assert read_back(new) == parse_net(QUIET).param and not foreign(new, terminal=False)


def test_a_merged_net_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "n.prototxt").write_text(QUIET, encoding="utf-8")
    net = Net(tmp_path / "n.prototxt", TEST)
    net.params[f"b{NAME}"][2].data[...] = 1
    net.save(tmp_path / "w.caffemodel")
    files = [str(tmp_path / name) for name in ("n.prototxt", "w.caffemodel", "m.prototxt", "m.caffemodel")]
    found = CliRunner().invoke(main, ["merge-bn", *files[:2], "-o", *files[2:4]])
    assert found.exit_code == 0, found.output
    assert [layer.name for layer in read_net(files[2]).param.layer] == ["x", f"c{NAME}"]
    assert not foreign(Path(files[2]).read_text(encoding="utf-8"), terminal=False)


@pytest.mark.parametrize("written", [f'"{NAME}"', '"sc" "ore"', r"'sc\157re'", r'"s\"core"'])
def test_a_retargeted_layer_is_renamed_however_it_is_written(written: str, tmp_path: Path) -> None:
    text = DETECTOR.replace('name: "score"', f"name: {written}") + "# \x1b[5m\u202e\n"
    Path(tmp_path / "n.prototxt").write_text(f"# {' ' * 5000}\n{text}", encoding="utf-8")
    before = read_net(tmp_path / "n.prototxt").param
    done = retarget(tmp_path / "n.prototxt", 3)
    old = next(layer.name for layer in before.layer if list(layer.top) == ["score"])
    names = [{old: f"{old}_3", "bbox_pred": "bbox_pred_3"}.get(layer.name, layer.name) for layer in before.layer]
    assert [layer.name for layer in parse_net(done.text).param.layer] == names
    assert r"# \x1b[5m\u202e" in done.text and not foreign(done.text, terminal=False)


def test_classes_written_with_escapes_are_an_error(tmp_path: Path) -> None:
    python = 'layer { name: "p" type: "Python" bottom: "data" top: "p" python_param { module: "m" layer: "ProposalTargetLayer"'
    (tmp_path / "n.prototxt").write_text(DETECTOR + python + r""" param_str: "'num\137classes': 4" } }""")
    with pytest.raises(Error, match="written with escapes"):
        retarget(tmp_path / "n.prototxt", 3)


def test_a_net_spec_is_read_back() -> None:
    spec = NetSpec()
    for name in NAMES:
        spec[name] = layers.Input(input_param={"shape": {"dim": [1]}})
    assert [layer.name for layer in read_back(str(spec.to_proto())).layer] == list(NAMES)


def test_drawings_and_tables_of_a_net_stay_whole() -> None:
    """Names of a net that no prototxt named: control characters are no XML at all."""
    net = caffe_pb2.NetParameter(name=WILD)
    for name in NAMES:
        net.layer.add(name=name, type="Python", bottom=["<b>"], top=[name]).python_param.layer = WILD
    picture = draw_net(net, "TB", "svg").decode()
    texts = [element.text for element in ET.fromstring(picture).iter() if element.tag.endswith(("text", "title"))]
    assert {on_one_line(name) for name in NAMES} <= set(texts) and on_one_line(WILD) in texts
    assert not foreign(picture, terminal=False)
    assert draw_net(net, "TB", "png")
    html = net_html(Net(parse_net(QUIET), TEST))
    assert not foreign(html, terminal=False) and r"[/][link=http://x]:skull:\u202e\u2028" in html


def test_a_table_of_a_log_stays_whole(tmp_path: Path) -> None:
    columns = ["NumIters", *NAMES, 'a,"b"']
    write_rows(tmp_path / "t.csv", [dict.fromkeys(columns, 1.0)])
    text = (tmp_path / "t.csv").read_text(encoding="utf-8")
    assert list(csv.reader(text.splitlines())) == [[on_one_line(name) for name in columns], ["1.0"] * len(columns)]
    assert not foreign(text, terminal=False)
