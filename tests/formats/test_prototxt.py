"""Reading prototxt: values, places, tolerance, and every error by its message."""

from __future__ import annotations

import re
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest
from fork_table import use_table
from google.protobuf import text_format
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from random_messages import messages
from recordings import SHARED, needs

from minicaffe import limits
from minicaffe.errors import LimitError, PrototxtError, PrototxtWarning
from minicaffe.formats import tokens
from minicaffe.formats.prototxt import parse_message, parse_net, parse_solver, read_net, read_solver
from minicaffe.formats.source import Place
from minicaffe.proto import caffe_pb2

needs_shared = needs(SHARED)

NET = """\
name: "small"
input: "data"  # the image
input_shape { dim: 1 dim: 3 dim: 20 dim: 21 }
layer {
  name: 'conv'  type: "Convolution"
  bottom: "data"; top: "conv",
  param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param: <
    num_output: 0x10
    kernel_size: [3, 5] pad: 010
    weight_filler { type: "gaus" 'sian' std: 1e-2f }
    engine: CAFFE
  >
}
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" relu_param { negative_slope: -.5 } }
"""


def layer(text: str) -> caffe_pb2.LayerParameter:
    return parse_message(text, caffe_pb2.LayerParameter())


# Values.


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (r'name: "a\x1b[2J" type: "ReLU" bottom: "x" top: "y"', r"made:2:\d+: the name 'a\\x1b\[2J' holds a control character"),
        (r'name: "a" type: "ReLU" bottom: "x" top: "y\n"', r"made:2:\d+: the top 'y\\n' holds"),
        (r'name: "a" type: "ReLU" bottom: "x\302\233" top: "y"', r"made:2:\d+: the bottom 'x\\x9b' holds"),
    ],
)
def test_names_that_would_speak_to_the_terminal(layer, message):
    with pytest.raises(PrototxtError, match=message):
        parse_net('input: "x" input_shape { dim: 1 }\nlayer { ' + layer + " }", "made")


@pytest.mark.parametrize(
    "layer", ['layer { name: "x" type: "Input" top: "x" }', 'layers { name: "x" type: DUMMY_DATA top: "x" }', ""]
)
def test_a_nets_name_that_would_speak_to_the_terminal(layer):
    with pytest.raises(PrototxtError, match=r"made:2:\d+: the name 'a\\x1b\[2J' holds a control character"):
        parse_net('\nname: "a\\x1b[2J"\n' + layer, "made")


def test_names_of_any_language():
    text = 'layer { name: "Schicht äöü 卷积 1" type: "Input" top: "图 \\\'1" input_param { shape { dim: 1 } } }'
    assert parse_net(text).param.layer[0].name == "Schicht äöü 卷积 1"


def test_a_net_with_every_spelling():
    net = parse_net(NET).param
    assert [(x.name, x.type) for x in net.layer] == [("input", "Input"), ("conv", "Convolution"), ("relu", "ReLU")]
    conv = net.layer[1].convolution_param
    assert (conv.num_output, list(conv.kernel_size), list(conv.pad)) == (16, [3, 5], [8])
    assert conv.weight_filler.type == "gaussian" and conv.weight_filler.std == np.float32(0.01)
    assert conv.engine == caffe_pb2.ConvolutionParameter.CAFFE
    assert net.layer[2].relu_param.negative_slope == -0.5
    assert [x.lr_mult for x in net.layer[1].param] == [1, 2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("-1.5", -1.5),
        ("- 2", -2.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("2.5E-1F", 0.25),
        ("3f", 3.0),
        ("inf", np.inf),
        ("-Infinity", -np.inf),
        ("1e99", np.inf),
        ("-3.4028235e38", float(-np.finfo(np.float32).max)),
        ("3.4028236e38", np.inf),
        ("0x1F", 31.0),
        ("nan", np.nan),
    ],
)
def test_floats(text, value):
    np.testing.assert_equal(parse_message(f"value: {text}", caffe_pb2.FillerParameter()).value, value)


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("-7", -7), ("0x7fffffff", 2**31 - 1), ("-0x80000000", -(2**31)), ("017", 15)]
)
def test_integers(text, value):
    assert parse_message(f"sparse: {text}", caffe_pb2.FillerParameter()).sparse == value


@pytest.mark.parametrize("text", ["true", "True", "t", "1"])
def test_true(text):
    assert parse_message(f"use_global_stats: {text}", caffe_pb2.BatchNormParameter()).use_global_stats


@pytest.mark.parametrize("text", ["false", "False", "f", "0"])
def test_false(text):
    got = parse_message(f"use_global_stats: {text}", caffe_pb2.BatchNormParameter())
    assert got.HasField("use_global_stats") and not got.use_global_stats


@pytest.mark.parametrize("text", ["AVE", "1", "0x1"])
def test_enum_by_name_and_number(text):
    assert parse_message(f"pool: {text}", caffe_pb2.PoolingParameter()).pool == caffe_pb2.PoolingParameter.AVE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\n\t\"b\'\\"', "a\n\t\"b'\\"),
        (r"'\101\x42\u00e9\U0001F600'", "ABé😀"),
        ('"é" "\\303\\251"', "éé"),
        ("\"'\" '\"'", "'\""),
        ('"# no comment {"', "# no comment {"),
        ('""', ""),
    ],
)
def test_strings(text, value):
    assert layer(f"name: {text}").name == value


def test_bytes_need_not_be_text():
    assert parse_message(r'data: "\377\000a"', caffe_pb2.Datum()).data == b"\xff\0a"


def test_lists_of_blocks_and_empty_lists():
    got = layer("param: [{lr_mult: 1}, <lr_mult: 2>] bottom: [] top: ['a'] loss_weight: [1, -2.5]")
    assert [x.lr_mult for x in got.param] == [1, 2]
    assert (list(got.bottom), list(got.top), list(got.loss_weight)) == ([], ["a"], [1, -2.5])


def test_an_empty_block_is_present():
    assert layer("transform_param {}").HasField("transform_param")


@settings(suppress_health_check=list(HealthCheck))
@given(messages(caffe_pb2.NetParameter.DESCRIPTOR), st.booleans(), st.booleans(), st.booleans())
def test_reads_what_protobuf_writes(written, one_line, short, pointy):
    text = text_format.MessageToString(
        written, as_one_line=one_line, use_short_repeated_primitives=short, pointy_brackets=pointy
    )
    got = parse_message(text, caffe_pb2.NetParameter())
    assert got.SerializePartialToString(deterministic=True) == written.SerializePartialToString(deterministic=True)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_file_reads_as_protobuf_reads_it_or_is_refused(data):
    """One edit anywhere: whatever protobuf still accepts, so do we, with the same content."""
    assert parse_message(NET, caffe_pb2.NetParameter()) == text_format.Parse(NET, caffe_pb2.NetParameter())
    at = data.draw(st.integers(0, len(NET)))
    cut = data.draw(st.integers(0, 3))
    text = NET[:at] + data.draw(st.text("{}<>[]:;,.\"'\\#- \n\tax19", max_size=3)) + NET[at + cut :]
    try:
        expected = text_format.Parse(text, caffe_pb2.NetParameter())
    except (text_format.ParseError, UnicodeError, DeprecationWarning):  # the last: an escape that Python knows no more
        expected = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrototxtWarning)
        try:
            got = parse_message(text, caffe_pb2.NetParameter())
        except PrototxtError:
            assert expected is None
            return
    if expected is not None:
        assert got == expected


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200).map(lambda b: b.decode("utf-8", "surrogateescape")), st.text(max_size=100)))
@example("[" * 5000)
@example("layer " * 3 + "{" * 5000)
@example("x {" * 5000)
@example("x: [" * 5000)
@example('name: "\ud800"')
@example("# " * 5000 + "\n" + "# " * 5000 + "+")
@example("sparse: " + "9" * 5000)
@example("layer { loss_weight: " + "9" * 5000 + " }")
def test_random_text_raises_nothing_but_prototxt_errors(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrototxtWarning)
        for read in (parse_net, parse_solver):
            try:
                read(text)
            except PrototxtError as error:
                str(error).encode("utf-8", "backslashreplace")


@given(data=st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_prototxt_errors(data, tmp_path):
    path = tmp_path / "random.prototxt"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrototxtWarning)
        try:
            read_net(path)
        except PrototxtError as error:
            assert str(error).startswith(str(path))


# Places.


def test_places_of_layers_and_fields():
    net = parse_net(NET, "small.prototxt")
    assert len(net.sources) == len(net.param.layer) == 3
    inputs, conv, relu = net.sources
    assert str(inputs.place) == "small.prototxt:2"
    assert inputs.at("top[0]") == Place("small.prototxt", 2, 1)
    assert inputs.at("input_param.shape[0]") == Place("small.prototxt", 3, 1)
    assert conv.place == Place("small.prototxt", 4, 1)
    assert conv.at("type") == Place("small.prototxt", 5, 17)
    assert conv.at("param[1].lr_mult").line == 7
    assert conv.at("convolution_param.kernel_size[1]") == Place("small.prototxt", 10, 22)
    assert conv.at("convolution_param.weight_filler.std").line == 11
    assert conv.at("convolution_param.weight_filler.mean") == Place("small.prototxt", 11, 5), (
        "the block, where a field is not written"
    )
    assert conv.at("convolution_param.pad") == conv.at("convolution_param.pad[0]")
    assert relu.at("nothing") == relu.place == Place("small.prototxt", 15, 1)
    assert len(conv.fields) == len(list(conv.fields)) == 17


def test_legacy_input_dims_have_places():
    source = parse_net("input: 'a'\ninput_dim: 1\ninput_dim: 2 input_dim: 3 input_dim: 4\nlayer {name: 'x'}").sources[0]
    assert source.at("input_param.shape[0]").line == 2


def test_an_upgraded_layer_keeps_its_blocks_place():
    text = 'layers { layer { name: "pad" type: "padding" pad: 2 } bottom: "x" top: "p" }\n'
    text += 'layers { layer { name: "conv" type: "conv" kernelsize: 3 } bottom: "p" top: "c" }\n'
    net = parse_net(text)
    assert [(x.name, x.bottom[0]) for x in net.param.layer] == [("conv", "x")]
    assert net.param.layer[0].convolution_param.pad == [2]
    assert [x.place.line for x in net.sources] == [2]


def test_carriage_returns_and_byte_order_marks(tmp_path):
    path = tmp_path / "dos.prototxt"
    path.write_bytes(b"\xef\xbb\xbf" + NET.replace("\n", "\r\n").encode())
    net = read_net(path)
    assert net.param == parse_net(NET).param
    assert str(net.sources[2].place) == f"{path}:15"
    assert net.file == str(path)


def test_comments_need_not_be_utf8(tmp_path):
    path = tmp_path / "latin.prototxt"
    path.write_bytes('# caf\xe9\nlayer { name: "a" }'.encode("latin-1"))
    assert read_net(path).param.layer[0].name == "a"


# What is not known is skipped: recorded, with a warning unless it cannot matter. Nets judge it: tests/test_skipped_fields.py.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "layer { fork_loud { a { b: [1, 2 < > ] } } }",
            "LayerParameter has no field fork_loud: it belongs to A's Caffe and B's Caffe, where it rounds the pooled size",
        ),
        (
            "layer {\n convolution_param { num_outputs: 3 } }",
            "net.prototxt:2: ConvolutionParameter has no field num_outputs; the nearest is num_output; skipped",
        ),
        ("layer { zzz: -1.5 }", "LayerParameter has no field zzz; skipped"),
        ("layer { zzz: 'a' \"b\"; }", "LayerParameter has no field zzz; skipped"),
        ("layer { [caffe.more/x] { a: 1 } }", "LayerParameter has no field [caffe.more/x]; skipped"),
        (
            "layer {}\nlayer { zzz: 1 }\nlayer { zzz: 2 }",
            "net.prototxt:2: LayerParameter has no field zzz; skipped (and 1 more, the last at line 3)",
        ),
        (
            "layer { blobs_lr: 1 }",
            "LayerParameter has no field blobs_lr: it belongs to V1's layers; in layer, write param {",
        ),
        ('bottom: "a"', "NetParameter has no field bottom: it belongs in a layer { ... }; skipped"),
        (
            'layers { layer { name: "x" type: "conv" new_height: 3 } }',
            'net.prototxt:1: V0 layer "x" of type "conv" does not use new_height; dropped',
        ),
    ],
)
def test_unknown_fields_are_skipped_with_a_warning(text, message, monkeypatch):
    use_table(monkeypatch)
    with pytest.warns(PrototxtWarning) as caught:
        parse_net(text + '\nname: "after"' if "layers" not in text else text, "net.prototxt")
    assert len(caught) == 1
    assert message in str(caught[0].message)
    if "skipped" in message:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parse_net(text, warn=False)


@pytest.mark.parametrize("engine", ["MKL2017", "MKLDNN", '"MKLDNN"', '"MKL" "DNN"', "INTEL", "CUDNN", "MLSL", "3"])
@pytest.mark.parametrize("strict", [True, False])
def test_an_engine_of_any_fork_means_nothing(engine, strict):
    """A warning is an error here."""
    text = f"""
    engine: {engine}
    layer {{ name: "x" type: "Convolution" engine: {engine} convolution_param {{ num_output: 3 engine: {engine} pad: 1 }} }}
    layer {{ dropout_param {{ engine: {engine} dropout_ratio: 0.25 }} pooling_param {{ engine: {engine} }} }}
    """
    conv, other = parse_net(text, strict=strict).param.layer
    assert (conv.convolution_param.num_output, conv.convolution_param.pad) == (3, [1])
    assert other.dropout_param.dropout_ratio == 0.25


def test_a_solvers_engine_means_nothing():
    assert parse_solver('engine: "MKLDNN" base_lr: 0.5').base_lr == 0.5


def test_an_engine_is_a_value():
    with pytest.raises(PrototxtError, match=r"1:33: engine takes one of its names, got \"}\""):
        parse_net("layer { pooling_param { engine: } }")


def test_skipped_fields_are_recorded():
    text = """name: "n" zzz: [1,  -2]
layer { name: "a" pooling_param { yyy { b: 'c' # why
 d: 2; } } xxx: "s" 't' pooling_paran { } }
layer { param { www: -inf } param { lr_mult: 1 www: 1e-3 } }
vvv { %s }""" % ("a: 1 " * 20)
    net = parse_net(text, "net.prototxt", warn=False)
    first, second = (source.skipped for source in net.sources)
    assert [(f.message, f.name, f.path, f.value) for f in net.skipped] == [
        ("NetParameter", "zzz", "zzz", "[ 1 , - 2 ]"),
        ("NetParameter", "vvv", "vvv", "{ " + "a : 1 " * 20 + "}"),
    ]
    assert [(f.message, f.name, f.path, f.value) for f in first] == [
        ("PoolingParameter", "yyy", "pooling_param.yyy", "{ b : 'c' d : 2 ; }"),
        ("LayerParameter", "xxx", "xxx", "\"s\" 't'"),
        ("LayerParameter", "pooling_paran", "pooling_paran", "{ }"),
    ]
    assert [(f.path, f.value, str(f.place), f.place.column) for f in second] == [
        ("param[0].www", "- inf", "net.prototxt:4", 17), ("param[1].www", "1e-3", "net.prototxt:4", 48),
    ]  # fmt: skip


def test_a_message_that_nobody_judges_later_warns():
    with pytest.warns(PrototxtWarning, match="FillerParameter has no field valu; the nearest is value; skipped"):
        parse_message("valu: 0.5", caffe_pb2.FillerParameter(), "filler")
    with pytest.warns(PrototxtWarning, match="PoolingParameter has no field zzz; skipped"):
        parse_message("layer { pooling_param { zzz: 0.5 } }", caffe_pb2.NetParameter())


def test_strict_refuses_unknown_fields(monkeypatch):
    use_table(monkeypatch)
    for field in ("fork_loud { }", "fork_quiet { }", "zzz { }"):
        name = field.split()[0]
        with pytest.raises(PrototxtError, match=rf"net.prototxt:2:2: LayerParameter has no field {name}"):
            parse_net(f"layer {{\n {field} }}", "net.prototxt", strict=True)


def test_a_refused_file_gives_no_warnings():
    with pytest.raises(PrototxtError):
        parse_net("layer { zzz: 1 }\n}")


# Errors.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'layers { type: "ReLU" }',
            '1:16: type takes a bare word, got the quoted "ReLU"|hint: layers is V1: use layer for a quoted type',
        ),
        (
            "layer {\n type: CONVOLUTION }",
            '2:8: type takes a quoted string, got CONVOLUTION|hint: layer takes a quoted type: write type: "Convolution"',
        ),
        ("layer { type: Foo }", 'hint: layer takes a quoted type: write type: "Foo"'),
        (
            "layer { pooling_param { pool: AVG } }",
            "1:31: pool has no value AVG|hint: did you mean AVE?; it is one of MAX, AVE, STOCHASTIC, AVE_EXC_PAD, AVE_TF",
        ),
        ('layer { pooling_param { pool: "MAX" } }', "hint: write pool: MAX without quotes"),
        ('layer { pooling_param { pool: "MXA" } }', "hint: did you mean MAX?"),
        ("layer { pooling_param { pool: 7 } }", "pool has no value 7|hint: it is one of MAX"),
        ("layer { pooling_param { pool: {} } }", 'pool takes one of its names, got "{"'),
        ("layers { type: CONVOLUTON }", "type has no value CONVOLUTON|hint: did you mean CONVOLUTION?"),
        ("layers { type: InnerProduct }", "hint: did you mean INNER_PRODUCT?"),
        ("layers { type: PSROIPOOLING }", 'layers is V1: newer types need layer { type: "PSROIPOOLING" ... }'),
        ("layers { param { lr_mult: 1 } }", "param takes a value, not a block|hint: layers is V1: use layer for param"),
        ("layers { param: w }", "hint: in V1's layers, param is a name"),
        ('layer { param: "w" }', 'param takes a block { ... }, got "w"|hint: in layer, param is a block'),
        ("layer {}\nlayers {}\nlayer {}", "2:1: the net mixes layer (line 1) and layers (line 2)|layer is V2 and layers is V1"),
        (
            "layer {\n convolution_param {\n",
            '2:2: "}" of convolution_param is missing|opened here and never closed; the file ends at line 3',
        ),
        ("layer {\n name: 'a'\nlayer { }", '3:1: layer inside layer: a "}" is missing above|hint: layer is opened at line 1'),
        ("layer {\n}\n type: 'a'\n}", '4:1: "}" closes nothing|closed once too often before line 3'),
        ("layer {}\n}", "closed once too often above"),
        ("layer { convolution_param < pad: 1 } }", '">" expected to close convolution_param, got "}"|opened at line 1'),
        ("layer { zzz {\n a: 1 ] }", '2:7: "}" expected, got "]"|hint: opened at line 1'),
        ("layer { zzz { a: 1", '1:13: "}" is missing|hint: opened here'),
        (
            "layer {\n name: 'a'\n name: 'b' }",
            "3:2: name is given twice, at line 2 and at line 3|hint: name takes one value, as in Caffe; delete one",
        ),
        ("layer { lrn_param { } lrn_param { } }", "lrn_param is given twice"),
        ("layer { flatten_param { axis: 1\n axis: 1 } }", "axis is given twice, at line 1 and at line 2"),
        (
            "layer { transform_param { resize_param { prob: 1 }\n resize_param { prob: 1 } } }",
            "resize_param is given twice, at line 1 and at line 2|hint: MobileNet-YOLO's Caffe picks one of several at random",
        ),
        (
            "layer { convolution_param { num_output: ${NUM_LABELS} } }",
            "1:41: ${NUM_LABELS} is a variable: this file is a template, whose variables a script of its repository fills in"
            "|hint: run that script on it and give what it writes, or write the value here; `minicaffe flow` fills in those of"
            " flow nets, `minicaffe segment --define NAME=VALUE` others",
        ),
        ("layer { convolution_param { num_output: $N } }", "$N is a variable: this file is a template"),
        ("layer { convolution_param { num_output: $ } }", "unexpected character '$'"),
        (
            "layer { convolution_param { num_output: cls3x } }",
            "num_output takes a whole number, got cls3x|hint: is this a template? cls3x may stand for a number",
        ),
        ("layer { convolution_param { num_output: -3 } }", "1:41: num_output: -3 is out of range (0 to 4294967295)"),
        ("layer { lrn_param { local_size: 4294967296 } }", "local_size: 4294967296 is out of range"),
        (
            "input_dim: 99999999999999999999999999999999999999999999999999999999999999999999",
            "a number of 68 digits is out of range",
        ),
        ("layer { lrn_param { local_size: 5.5 } }", "local_size takes a whole number, got 5.5"),
        ("layer { lrn_param { local_size: 089 } }", "local_size takes a whole number, got 089"),
        ("layer { lrn_param { alpha: abc } }", "alpha takes a number, got abc|hint: is this a template? abc may stand for"),
        ("layer { lrn_param { alpha: +1 } }", "a number takes no +"),
        (
            "layer {\n psroi_pooling_param { group_size: 7 } }",
            "2:2: psroi_pooling_param has no spatial_scale, which is required",
        ),
        ("force_backward: yes", "force_backward takes true or false, got yes"),
        ("name: conv1", 'name takes a quoted string, got conv1|hint: write name: "conv1"'),
        ('name "conv1"', '":" expected after name, got "conv1"|hint: write name: "conv1"'),
        ("name }", '":" expected after name, got "}"|hint: write name: value'),
        ("name: {}", 'name takes a quoted string, got "{"'),
        ("name {}", "name takes a value, not a block"),
        ("name: ['a']", "name takes one value, not a list"),
        ("layer: 1", "layer takes a block { ... }, got 1|hint: write layer { ... }"),
        ("input: ['a' 'b', ]", '"," or "]" expected in the list of input'),
        ('layer { name: "abc }\n', '1:15: a string is not closed on its line|hint: end it with "'),
        ("layer { name: “abc” }", "typographic quote"),
        ("layer\xa0{ }", "a no-break space"),
        ("// comment\nlayer {}", "a field name expected|hint: a comment starts with #"),
        ('name: "\\377"', "name is not UTF-8 text"),
        ('name: "\\777"', "larger than a byte"),
        ('name: "\\ud800"', "is not a character"),
        ('name: "\\q"', "an unknown escape"),
        ("name: ", "name takes a quoted string, got the end of the file"),
        ("zzz", '":" or "{" expected after zzz, got the end of the file'),
        ("zzz: }", 'a value expected for zzz, got "}"'),
        ("", "net.prototxt: the file is empty (0 bytes)"),
        (" \n# nothing\n", "the file holds only blanks and comments"),
        ("\n\x04test\x00\x01", "this is a binary file, not a prototxt|it looks like a .caffemodel"),
        ("# text\n" * 1000 + "\0", "unexpected character '\\x00'"),
        ("train_net: 'x'", "1:1: train_net is not a field of NetParameter|hint: this is a solver prototxt"),
        (
            "input: 'a' input: 'b' input_dim: 1 input_dim: 2 input_dim: 3 input_dim: 4",
            "4 input_dim given for 2 input|each input takes 4 input_dim",
        ),
        ("\ninput: 'a' input: 'b' input_shape { dim: 1 }", "2:1: 1 input_shape given for 2 input"),
        ('\nlayers { layer { name: "x" type: "foo" } }', '2:1: "x": V0 has no layer type "foo"|hint: it is one of accuracy'),
    ],
)
def test_errors(text, message):
    with pytest.raises(PrototxtError) as caught:
        parse_net(text, "net.prototxt")
    for part in message.split("|"):
        assert part in str(caught.value)
    assert str(caught.value).startswith("net.prototxt:")


def test_an_error_shows_the_line_and_a_caret():
    with pytest.raises(PrototxtError) as caught:
        parse_net("layer {\n\tpooling_param { pool: AVG }\n}", "net.prototxt")
    assert str(caught.value).splitlines() == [
        "net.prototxt:2:24: pool has no value AVG",
        "   pooling_param { pool: AVG }",
        "                         ^",
        "hint: did you mean AVE?; it is one of MAX, AVE, STOCHASTIC, AVE_EXC_PAD, AVE_TF",
    ]
    assert (caught.value.line, caught.value.column, caught.value.file) == (2, 24, "net.prototxt")


def test_a_long_line_is_shown_around_the_error():
    with pytest.raises(PrototxtError) as caught:
        parse_net("layer { } " * 1000 + "layer { name: x }" + " layer { }" * 1000)
    _, shown, caret, _ = str(caught.value).splitlines()
    assert len(shown) < 130 and shown[caret.index("^")] == "x"


def test_blocks_nested_too_deep():
    with pytest.raises(PrototxtError, match="nested more than 100 deep"):
        parse_net("x {" * 101 + "}" * 101)


def test_messages_nested_too_deep():
    from google.protobuf.descriptor_pb2 import DescriptorProto

    assert parse_message("nested_type {" * 100 + "}" * 100, DescriptorProto()).nested_type
    with pytest.raises(PrototxtError, match="nested more than 100 deep"):
        parse_message("nested_type {" * 101 + "}" * 101, DescriptorProto())


# Files.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty (0 bytes)"),
        (
            b"\n\x05model\xa2\x06\x01\x00",
            "this is a binary file, not a prototxt\nhint: it looks like a .caffemodel: are the net and its weights swapped?",
        ),
        (b"\x89HDF\r\n\x1a\n\0\0", "this is an HDF5 file, not a prototxt"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "this is a PNG picture, not a prototxt: "),
        (b"PK\x03\x04" + bytes(40), "this is a zip archive, not a prototxt: unpack it first"),
        (b"# 1\n# \xe9\x1b[0m\nname: 'a'", "x.prototxt:2:4: unexpected character '\\x1b'"),
        (b"\x1b[1;31mname: 'a'", "x.prototxt:1:1: unexpected character '\\x1b'"),
        ("name: 'a'".encode("utf-16"), "this is UTF-16 text\nhint: save it as UTF-8"),
        (b'name: "\xff"', "name is not UTF-8 text"),
    ],
)
@pytest.mark.parametrize("read", [read_net, read_solver])
def test_files_that_are_no_prototxt(tmp_path, content, message, read):
    path = tmp_path / "x.prototxt"
    path.write_bytes(content)
    if read is read_solver:
        message = message.replace("name is", "net is")
        path.write_bytes(content.replace(b"name", b"net"))
    with pytest.raises(PrototxtError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(PrototxtError, match="no such file"):
        read_net(tmp_path / "missing.prototxt")
    with pytest.raises(PrototxtError, match="cannot be read: "):
        read_net(tmp_path)
    with pytest.raises(PrototxtError, match=r"cannot be read: no file has such a name"):
        read_net("a\0b")


def test_solver_errors():
    with pytest.raises(PrototxtError, match=r"layer is not a field of SolverParameter(.|\n)*hint: this is a net prototxt"):
        parse_solver('name: "x"\nlayer { }')
    with pytest.raises(PrototxtError, match=r'1:1: the solver has both solver_type: ADAM and type: "Adam"(.|\n)*keep type'):
        parse_solver('solver_type: ADAM type: "Adam"')


def test_unknown_fields_of_solvers(monkeypatch):
    use_table(monkeypatch)
    assert parse_solver("base_lr: 0.5 fork_quiet: 0.1 fork_loud: false").base_lr == 0.5
    for field in ("fork_loud: 0.1", "base_rl: 0.1", "solver_param { a: 1 }"):
        text, name = f"base_lr: 0.5\n{field}", field.split()[0].rstrip(":")
        with pytest.raises(PrototxtError, match=rf"<text>:2:1: SolverParameter has no field {name}"):
            parse_solver(text)
        with pytest.warns(PrototxtWarning, match=f"SolverParameter has no field {name}"):
            assert parse_solver(text, strict=False).base_lr == 0.5


# Real files, and speed.


def is_solver(text: str) -> bool:
    return "base_lr" in text or "lr_policy" in text


@needs_shared
@pytest.mark.parametrize("folder", ["models", "zoo", "golden"])
@pytest.mark.parametrize("every", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_published_files_read_without_a_warning_and_as_protobuf_reads_them(every, folder, record_property):
    """One in sixteen of them, and slowly all."""
    paths = sorted(path for path in (SHARED / folder).rglob("*") if path.suffix in (".prototxt", ".pt"))
    solvers, read = 0, set()
    for path in paths[::every]:
        text = path.read_text(encoding="utf-8")
        if is_solver(text):
            solvers += 1
        if text in read:  # many a model stands in several repositories
            continue
        read.add(text)
        kind = caffe_pb2.SolverParameter if is_solver(text) else caffe_pb2.NetParameter
        assert parse_message(text, kind(), str(path)) == text_format.Parse(text, kind())
        if is_solver(text):
            assert read_solver(path).net or read_solver(path).train_net
        else:
            net = read_net(path, strict=True)
            assert len(net.sources) == len(net.param.layer) and not net.param.layers and not net.param.input
    nets = len(paths[::every]) - solvers
    record_property("read", f"{nets} nets, {solvers} solvers")
    print(f"{folder}: {nets} nets and {solvers} solvers read")
    assert nets
    if folder == "models" and every == 1:
        assert nets == 110


@pytest.mark.parametrize("text", ["{", "[", ";", '""', "layer {", "a {", "input_dim: {", "name: 1 "])
def test_a_text_is_read_up_to_its_first_error(text, monkeypatch):
    read: list[int] = []
    read_on = tokens.Tokens.read_on

    def count(self, *most):
        read_on(self, *most)
        read.append(len(self.words))

    monkeypatch.setattr(tokens.Tokens, "read_on", count)
    with pytest.raises(PrototxtError):
        parse_net(text * 50_000)
    assert max(read) <= tokens.AT_ONCE


LAYER = 'layer { name: "a" type: "Concat" top: "b" %s }'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("input_dim: [" + "1," * 999 + "1]", "it has more than 2,000 words and signs, 200 for each layer of the limit"),
        ("input_dim: 1 " * 667, "it has more than 2,000 words and signs"),
        ("x { " + "y: 1 " * 667 + "}", "it has more than 2,000 words and signs"),
        ("name: " + '"a" ' * 2000, "it has more than 2,000 words and signs"),
        ('name: "' + "\\n" * 2001 + '"', "it has more than 2,000 backslashes"),
        ("a: 1 " * 101, "it has more than 100 unknown fields, 10 for each layer of the limit"),
        (LAYER % ("x {} " * 101), "it has more than 100 unknown fields"),
        (LAYER % ('bottom: "a" ' * 100), "it has more than 100 bottoms and tops, 10 for each layer of the limit"),
        ('input: "a" ' * 101 + "input_dim: [1, 1, 1, 1] " * 101, "it has more than 100 bottoms and tops"),
    ],
)
def test_a_text_of_too_many_parts(text, message, monkeypatch):
    monkeypatch.setattr(limits, "layers", 10)
    way = "minicaffe.limits.layers = N, or --limit layers=N, allows more"
    with pytest.raises(LimitError, match=rf"^net\.prototxt: {re.escape(message)}.*: {re.escape(way)}$"):
        parse_net(text, "net.prototxt", warn=False)
    monkeypatch.setattr(limits, "layers", 100)
    with suppress(PrototxtError):  # a net that means nothing may be refused for that
        parse_net(text, "net.prototxt", warn=False)


@pytest.mark.slow
def test_speed():
    """A text of ResNet-101's size (120 KB) reads in a small multiple of what protobuf's own parser takes."""
    text = NET + NET[NET.index("layer {") :] * 300
    text_format.Parse(text, caffe_pb2.NetParameter())
    ours, theirs = (min(timed(read, text) for _ in range(3)) for read in (parse_net, protobuf_net))
    print(f"{len(text) // 1000} KB: {ours * 1000:.0f} ms, protobuf's parser {theirs * 1000:.0f} ms")
    assert ours < 2 * theirs


def protobuf_net(text: str) -> caffe_pb2.NetParameter:
    return text_format.Parse(text, caffe_pb2.NetParameter())


def timed(run, *arguments) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start
