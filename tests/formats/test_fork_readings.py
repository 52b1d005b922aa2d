"""Fields of one number and several meanings in a .caffemodel: translated by evidence, or refused with every reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from recordings import SHARED, needs

from minicaffe import Net
from minicaffe.cli import main
from minicaffe.errors import Error, WeightsError
from minicaffe.formats.fork_numbers import DEEPLAB_NUMBERS, own_blocks
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.stored_net import read_stored_net
from minicaffe.formats.weights import encoded_blob
from minicaffe.formats.wire import VARINT, encoded, header
from minicaffe.layers import CATALOGUE
from minicaffe.porting.rescue import rescue
from minicaffe.proto import caffe_pb2

needs_shared = needs(SHARED)
COMMON = {"transform_param", "loss_param", "python_param"}
CONVOLUTION, DROPOUT, POOLING, BATCH_NORM, BN = 106, 108, 121, 139, 152


def message(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def integer(number: int, value: int) -> bytes:
    return encoded(number << 3 | VARINT) + encoded(value)


def real(number: int, value: float) -> bytes:
    return encoded(number << 3 | 5) + np.float32(value).tobytes()


def layer(kind: str, *fields: bytes, blobs: int = 0, name: str = "it") -> bytes:
    blob = message(7, b"".join(bytes(part) for part in encoded_blob(np.ones((1, 2, 1, 1), np.float32))))
    return message(100, message(1, name.encode()) + message(2, kind.encode()) + b"".join(fields) + blobs * blob)


CASCADES = layer("SmoothL1Loss", message(149, real(1, 3.0)), name="l1")
"""A layer whose block only this fork numbers so."""
INTELS = layer("BoxAnnotatorOHEM", message(152, integer(1, 64)), name="ohem")
SEGNETS = layer("Upsample", message(137, integer(1, 2)), name="up")
NVIDIAS = layer("ReLU", integer(149, 1), name="relu")
RCNNS = layer("ROIPooling", message(8266711, integer(1, 7)), name="roi")


def read(tmp_path: Path, *layers: bytes, fork: str = "") -> caffe_pb2.LayerParameter:
    """The last layer, as the net has it that is made from a file of these."""
    (tmp_path / "n.caffemodel").write_bytes(message(1, b"net") + b"".join(layers))
    return read_stored_net(tmp_path / "n.caffemodel", fork)[0].layer[-1]


def pooling(value: int, pool: int = 0) -> bytes:
    return layer("Pooling", message(POOLING, integer(1, pool) + integer(2, 3) + integer(3, 2) + integer(13, value)))


def test_poolings_13_without_evidence_is_refused_with_each_reading(tmp_path: Path) -> None:
    with pytest.raises(WeightsError) as caught:
        read(tmp_path, pooling(1))
    said = str(caught.value)
    assert 'n.caffemodel: layer "it": pooling_param field 13 is round_mode: FLOOR in BVLC Caffe and others; ' in said
    assert "ceil_mode: true in Cascade R-CNN, py-RFCN-priv and frcnn (makefile); avg_include_pad: true in Intel Caffe; " in said
    assert said.endswith("name the fork that wrote the file (fork=, --fork)")
    with pytest.raises(WeightsError, match="round_mode: CEIL in BVLC Caffe and others; ceil_mode: false in Cascade R-CNN"):
        read(tmp_path, pooling(0))


def test_poolings_13_as_the_files_fork_reads_it(tmp_path: Path) -> None:
    assert read(tmp_path, CASCADES, pooling(0)).pooling_param.ceil_mode is False
    up = read(tmp_path, CASCADES, pooling(1)).pooling_param
    assert not up.HasField("round_mode") and not up.HasField("ceil_mode")  # its default
    assert read(tmp_path, NVIDIAS, pooling(1)).pooling_param.round_mode == caffe_pb2.PoolingParameter.FLOOR
    assert not read(tmp_path, INTELS, pooling(1)).pooling_param.HasField("round_mode")
    assert not read(tmp_path, INTELS, pooling(0)).pooling_param.HasField("round_mode")  # MAX has no mean to divide
    assert read(tmp_path, INTELS, pooling(0, pool=1)).pooling_param.avg_include_pad is False


@pytest.mark.parametrize(
    ("fork", "value", "field"), [("bvlc", 1, "round_mode"), ("cascade", 0, "ceil_mode"), ("cascade", 1, "")]
)
def test_a_named_fork_decides(fork: str, value: int, field: str, tmp_path: Path) -> None:
    found = read(tmp_path, pooling(value), fork=fork).pooling_param
    assert [name for name in ("round_mode", "ceil_mode") if found.HasField(name)] == ([field] if field else [])


def test_rescue_takes_the_forks_name(tmp_path: Path) -> None:
    file = tmp_path / "n.caffemodel"
    given = layer(
        "Input", message(143, message(1, integer(1, 1) + integer(1, 1) + integer(1, 6) + integer(1, 6))), message(4, b"x")
    )
    pool = layer("Pooling", message(3, b"x"), message(4, b"y"), message(POOLING, integer(2, 3) + integer(13, 0)))
    file.write_bytes(message(1, b"net") + given + pool)
    result = CliRunner().invoke(main, ["rescue", str(file)])
    assert result.exit_code == 1 and "ceil_mode: false in Cascade R-CNN" in result.output
    result = CliRunner().invoke(main, ["rescue", str(file), "--fork", "cascade"])
    assert result.exit_code == 0 and "ceil_mode: false" in result.output
    with pytest.raises(Error, match='no fork is called "cascad"'):
        rescue(file, "cascad")


def test_minicaffes_own_round_mode_is_read_back(tmp_path: Path) -> None:
    net = Net(
        parse_net("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 1 dim: 6 dim: 6 } } }
        layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 1 kernel_size: 1 } }
        layer { name: "p" type: "Pooling" bottom: "c" top: "p"
          pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR } }""")
    )
    net.save(tmp_path / "n.caffemodel")
    found = rescue(tmp_path / "n.caffemodel").param.layer[-1].pooling_param
    assert found.round_mode == caffe_pb2.PoolingParameter.FLOOR and not found.HasField("ceil_mode")


def test_deeplabs_blocks_have_numbers_of_their_own(tmp_path: Path) -> None:
    block = integer(1, 8) + integer(4, 3) + integer(3, 2)
    found = read(tmp_path, layer("Convolution", message(110, block + integer(17, 2))))
    assert (found.convolution_param.num_output, found.convolution_param.hole) == (8, 2)
    assert not found.HasField("eltwise_param") and not found.convolution_param.HasField("force_nd_im2col")
    both = read(tmp_path, layer("Convolution", message(110, block + integer(18, 3) + integer(19, 2)))).convolution_param
    assert (both.hole_h, both.hole_w, list(both.dilation)) == (3, 2, [])
    found = read(tmp_path, layer("Pooling", message(136, integer(2, 3) + integer(13, 0))))
    assert found.pooling_param.kernel_size == 3 and not found.HasField("reduction_param")
    with pytest.raises(WeightsError, match="do_spm: true of DeepLab, which is not built"):
        read(tmp_path, layer("Pooling", message(136, integer(13, 1))))
    assert (
        read(tmp_path, layer("Interp", message(DEEPLAB_NUMBERS["interp_param"], integer(3, 8)))).interp_param.zoom_factor == 8
    )


def test_bvlcs_dilation_stays(tmp_path: Path) -> None:
    fields = integer(1, 8) + integer(4, 3) + integer(17, 1) + integer(18, 2)
    found = read(tmp_path, layer("Convolution", message(CONVOLUTION, fields))).convolution_param
    assert list(found.dilation) == [2] and not found.HasField("hole")
    assert read(tmp_path, layer("Convolution", message(CONVOLUTION, integer(17, 4)))).convolution_param.hole == 4
    tuned = read(tmp_path, layer("Convolution", message(CONVOLUTION, integer(18, 2) + integer(19, 1)))).convolution_param
    assert list(tuned.dilation) == [2] and not tuned.HasField("hole_w")
    with pytest.raises(
        WeightsError, match=r"field 19 is cuDNN's algorithm 2 in .* DeepDetect's Caffe; hole_w: 2 in minicaffe: name"
    ):
        read(tmp_path, layer("Convolution", message(CONVOLUTION, integer(19, 2))))


def test_v1s_convolution_has_holes(tmp_path: Path) -> None:
    v1 = message(4, b"it") + integer(5, 4) + message(10, integer(1, 8) + integer(4, 3) + integer(17, 4))
    found = read(tmp_path, message(2, v1))
    assert found.type == "Convolution" and found.convolution_param.hole == 4
    assert not found.convolution_param.HasField("force_nd_im2col")


def test_dropouts_field_2(tmp_path: Path) -> None:
    def dropout(value: int) -> bytes:
        return layer("Dropout", message(DROPOUT, real(1, 0.3) + integer(2, value)))

    assert not read(tmp_path, NVIDIAS, dropout(1)).dropout_param.HasField("scale_train")
    assert not read(tmp_path, dropout(2)).dropout_param.HasField("scale_train")  # an engine: no truth value is 2
    assert read(tmp_path, RCNNS, dropout(0)).dropout_param.scale_train is False
    assert read(tmp_path, SEGNETS, dropout(1)).dropout_param.sample_weights_test is True
    assert not read(tmp_path, SEGNETS, dropout(0)).dropout_param.HasField("sample_weights_test")
    with pytest.raises(WeightsError, match="engine 0 in NVIDIA Caffe; scale_train: false in Faster R-CNN"):
        read(tmp_path, dropout(0))


def test_a_reserved_number_has_no_effect(tmp_path: Path) -> None:
    number = caffe_pb2.LayerParameter.DENSEBLOCK_PARAM_FIELD_NUMBER
    block = read(tmp_path, layer("DenseBlock", message(number, integer(1, 2) + integer(15, 3)))).denseblock_param
    assert block.numTransition == 2 and not block.HasField("growthRate")
    with pytest.raises(WeightsError, match="denseblock_param field 22 belongs to a fork's field that minicaffe lacks"):
        read(tmp_path, layer("DenseBlock", message(number, integer(22, 3))))


def test_bn_by_its_number_and_by_its_blobs(tmp_path: Path) -> None:
    mode = message(1, b"") + message(2, b"") + integer(3, 1)
    for found in (
        read(tmp_path, layer("BN", message(45, mode))),
        read(tmp_path, layer("BN", message(45, mode), blobs=2)),
        read(tmp_path, layer("BN", message(BN, mode), blobs=2)),
    ):
        assert {field.name for field, _ in found.bn_param.ListFields()} == {"scale_filler", "shift_filler", "bn_mode"}
        assert found.bn_param.bn_mode == caffe_pb2.BNParameter.INFERENCE
    pspnets = message(1, b"") + message(2, b"") + real(3, 0.95) + real(4, 1e-3)
    for number, blobs in ((BN, 0), (BN, 4), (200, 4), (45, 4)):
        found = read(tmp_path, layer("BN", message(number, pspnets), blobs=blobs)).bn_param
        assert {field.name for field, _ in found.ListFields()} == {"slope_filler", "bias_filler", "momentum", "eps"}
    with pytest.raises(WeightsError, match="bn_param field 3 is a field of BN of CTPN, which is not built"):
        read(tmp_path, layer("BN", message(144, real(3, 1e-10))))


def test_batch_norms_fields(tmp_path: Path) -> None:
    def batch_norm(*fields: bytes) -> bytes:
        return layer("BatchNorm", message(BATCH_NORM, b"".join(fields)))

    nvidias = read(tmp_path, batch_norm(message(5, b""), integer(7, 1), integer(15, 2))).batch_norm_param
    assert nvidias.HasField("scale_filler") and nvidias.scale_bias
    assert read(tmp_path, batch_norm(integer(4, 0))).HasField("batch_norm_param")
    assert read(tmp_path, batch_norm(integer(4, 1)), fork="pspnet").HasField("batch_norm_param")  # it trains only
    for field, words in [
        (integer(4, 1), "update_global_stats: true in PSPNet and caffe_ocr; disable_mean: true in caffe-windows"),
        (integer(5, 1), "disable_variance: true of caffe-windows"), (message(7, b""), "a learnt scale of caffe-windows"),
    ]:  # fmt: skip
        with pytest.raises(WeightsError, match=words):
            read(tmp_path, batch_norm(field))


def test_blocks_of_ctc_layers(tmp_path: Path) -> None:
    fields = integer(1, 37) + integer(3, 24) + integer(4, 36)
    for number in (157, 200):
        found = read(tmp_path, layer("CtcLoss", message(number, fields))).ctc_loss_param
        assert (found.alphabet_size, found.time_step, found.blank_label) == (37, 24, 36)
        assert not found.HasField("output_delay")
    ocr = read(tmp_path, layer("CTCLoss", message(159, integer(1, 2)))).ctc_loss_param
    assert ocr.output_delay == 2 and ocr.HasField("blank_index") and ocr.blank_index == 0  # where ChWick's default is -1
    assert read(tmp_path, layer("CTCLoss", message(159, integer(2, 5)))).ctc_loss_param.blank_index == 5
    axis = read(tmp_path, layer("ContinuationIndicator", message(158, integer(2, 1)))).continuation_indicator_param
    assert axis.axis == 1 and not axis.HasField("batch_size")


def test_a_default_of_the_fork(tmp_path: Path) -> None:
    yolos = read(tmp_path, layer("Upsample", message(150, b""))).upsample_param
    assert yolos.HasField("scale") and yolos.scale == 1
    assert read(tmp_path, layer("Upsample", message(150, integer(1, 3)))).upsample_param.scale == 3
    assert not read(tmp_path, layer("Upsample", message(137, b""))).upsample_param.HasField("scale")


@pytest.mark.parametrize(
    ("kind", "number", "field", "words"),
    [
        ("DetectionOutput", 204, real(5, 0.3), "detection_output_param field 5 is not save_output_param"),
        ("Pooling", POOLING, integer(1, 4), "pooling_param field 1 is pool 4, a value of another fork"),
        ("Softmax", 125, real(3, 2.0), "softmax_param field 3 belongs to a fork's field that minicaffe lacks"),
        ("Pooling", POOLING, integer(40, 1), "pooling_param field 40 belongs to a fork's field that minicaffe lacks"),
    ],
)
def test_what_no_field_of_minicaffe_is(kind: str, number: int, field: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=words):
        read(tmp_path, layer(kind, message(number, field)))


def test_values_that_change_nothing_are_left_out(tmp_path: Path) -> None:
    assert read(tmp_path, layer("Pooling", message(POOLING, integer(2, 3) + integer(40, 0)))).pooling_param.kernel_size == 3
    assert read(tmp_path, layer("Softmax", message(125, real(3, 0.0)))).type == "Softmax"
    assert not read(tmp_path, layer("ReLU", message(123, integer(2, 4)))).relu_param.HasField("engine")  # Intel's MKLDNN


def test_what_a_loss_trains_with_is_left_out(tmp_path: Path) -> None:
    found = read(tmp_path, layer("SoftmaxWithLoss", message(125, integer(2, 1) + real(3, 0.7))))
    assert found.softmax_param.axis == 1


@needs_shared
def test_no_published_file_is_refused() -> None:
    files = sorted((SHARED / "zoo").rglob("*.caffemodel"))
    assert len(files) > 10
    for file in files:
        assert read_stored_net(file)[0].layer


def test_a_layer_keeps_the_blocks_of_its_type_only(tmp_path: Path) -> None:
    found = read(tmp_path, layer("ROIPooling", message(147, integer(1, 6)), message(148, b"")))
    assert found.roi_pooling_param.pooled_h == 6 and not found.HasField("swish_param") and not found.HasField("clip_param")


def test_the_blocks_of_each_type_are_those_that_its_class_reads() -> None:
    wrong = {kind: set(cls.param_block) - COMMON - set(own_blocks(kind)) for kind, cls in CATALOGUE.items()}
    assert {kind: blocks for kind, blocks in wrong.items() if blocks} == {}


def test_deep_detects_focal_loss(tmp_path: Path) -> None:
    """Block 156, with numbers of its own; axis, which the others lack, tells the kind."""
    content = integer(1, 2) + integer(2, 3) + real(3, 0.5) + real(4, 1.5)
    param = read(tmp_path, layer("FocalLoss", message(156, content))).focal_loss_param
    assert (param.engine, param.axis, param.alpha, param.gamma) == (2, 3, 0.5, 1.5)
    param = read(tmp_path, layer("FocalLoss", message(156, real(4, 3.0)))).focal_loss_param
    assert (param.gamma, param.alpha, param.axis, param.HasField("axis")) == (3, 0.25, 1, True)
    assert read(tmp_path, layer("FocalLoss", message(205, real(2, 3.0)))).focal_loss_param.gamma == 3
    for wrong in (integer(5, 1), real(2, 1.0), integer(3, 1)):
        with pytest.raises(
            WeightsError, match=r'layer "it": focal_loss_param field . belongs to a fork\'s field that minicaffe lacks'
        ):
            read(tmp_path, layer("FocalLoss", message(156, wrong)))


def test_blocks_of_forks_are_read_by_their_numbers(tmp_path: Path) -> None:
    assert read(tmp_path, layer("DenseBlock", message(147, integer(3, 8)))).denseblock_param.growthRate == 8
    assert read(tmp_path, layer("Filter", message(149, integer(2, 35)))).filter_param.num_output == 35
    assert read(tmp_path, layer("InnerDistance", message(213, integer(1, 4)))).inner_distance_param.num_output == 4
    loss = read(tmp_path, layer("GeneralContrastiveLoss", message(215, real(2, 3.0)))).general_contrastive_loss_param
    assert loss.negative_margin == 3
