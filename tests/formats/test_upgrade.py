"""Upgrades of older nets and solvers: what Caffe's own tools made of them, and the rules one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from recordings import SHARED, needs

from minicaffe.errors import PrototxtError, PrototxtWarning, UpgradeError
from minicaffe.formats.prototxt import parse_net, parse_solver, read_net, read_solver
from minicaffe.formats.upgrade import (
    INPUT_FIELDS,
    SOLVER_TYPES,
    V0_FIELDS,
    V0_SAME,
    V0_TYPES,
    V1_TYPES,
    upgrade_net,
    upgrade_solver,
)
from minicaffe.proto import caffe_pb2

GOLDEN = SHARED / "golden" / "upgrade"
needs_golden = needs(GOLDEN)


def net(text: str) -> caffe_pb2.NetParameter:
    return text_format.Parse(text, caffe_pb2.NetParameter())


def upgraded(text: str) -> caffe_pb2.NetParameter:
    return upgrade_net(net(text))[0]


# What Caffe made of them.


def golden_cases(pattern: str) -> list[Path]:
    return sorted(GOLDEN.glob(pattern))


@needs_golden
def test_golden_prototxts():
    cases = golden_cases("*.in.prototxt")
    for path in cases:
        expected = path.with_name(path.name.replace(".in.", ".out.")).read_text()
        if path.name.startswith("solver"):
            got, want = parse_solver(path.read_text(), str(path)), text_format.Parse(expected, caffe_pb2.SolverParameter())
        else:
            got, want = read_net(path).param, net(expected)
        assert got == want, path.name
    print(f"{len(cases)} upgrades of prototxts agree with Caffe's")
    assert len(cases) == 15


@needs_golden
def test_golden_binaries():
    cases = golden_cases("*.in.caffemodel")
    for path in cases:
        old = caffe_pb2.NetParameter.FromString(path.read_bytes())
        want = caffe_pb2.NetParameter.FromString(path.with_name(path.name.replace(".in.", ".out.")).read_bytes())
        assert upgrade_net(old)[0] == want, path.name
    print(f"{len(cases)} upgrades of caffemodels agree with Caffe's")
    assert len(cases) == 4


@needs_golden
def test_what_is_upgraded_already_stays():
    for path in golden_cases("*.out.prototxt"):
        if not path.name.startswith("solver"):
            today = net(path.read_text())
            assert upgrade_net(today) == (today, list(range(len(today.layer))))


# V0.


def test_a_padding_layer_folds_into_the_convolution_that_reads_it():
    new, origins = upgrade_net(
        net("""
        layers { layer { name: "pad" type: "padding" pad: 2 } bottom: "x" top: "p" }
        layers { layer { name: "conv" type: "conv" kernelsize: 5 } bottom: "p" top: "c" }
        """)
    )
    assert origins == [1]
    assert new.layer[0].bottom == ["x"]
    assert new.layer[0].convolution_param == caffe_pb2.ConvolutionParameter(pad=[2], kernel_size=[5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'layers { layer { name: "pad" type: "padding" } bottom: "x" top: "p" }'
            'layers { layer { name: "ip" type: "innerproduct" } bottom: "p" top: "c" }',
            '"ip" reads padding layer "pad": only conv and pool with one bottom can',
        ),
        (
            'layers { layer { name: "pad" type: "padding" } bottom: "x" bottom: "y" top: "p" }'
            'layers { layer { name: "conv" type: "conv" } bottom: "p" top: "c" }',
            'padding layer "pad" must have one bottom and one top',
        ),
    ],
)
def test_padding_that_cannot_fold(text, message):
    with pytest.raises(UpgradeError, match=message) as caught:
        upgrade_net(net(text))
    assert caught.value.block == 1


def test_every_v0_type_and_field_has_a_place_in_v1():
    """The table's paths exist, and no field of V0 is forgotten but those that Caffe itself drops."""
    v1 = caffe_pb2.V1LayerParameter.DESCRIPTOR
    for homes in V0_FIELDS.values():
        for kind, path in homes.items():
            assert kind == "*" or kind in V0_TYPES
            message = v1
            for name in path.split("."):
                message, field = (message.fields_by_name[name].message_type or message), message.fields_by_name[name]
            assert field.name == path.split(".")[-1]
    names = set(caffe_pb2.V0LayerParameter.DESCRIPTOR.fields_by_name)
    assert names - set(V0_FIELDS) - V0_SAME == {"new_num", "new_channels"}


@pytest.mark.parametrize("v0", V0_TYPES)
def test_v0_types(v0):
    assert upgraded(f'layers {{ layer {{ name: "x" type: "{v0}" }} }}').layer[0].type == V1_TYPES[V0_TYPES[v0]]


def test_a_v0_type_of_a_fork():
    assert upgraded('layers { layer { name: "x" type: "eltwise_accuracy" } }').layer[0].type == "EltwiseAccuracy"


def test_a_v0_type_that_never_was():
    with pytest.raises(UpgradeError, match='"x": V0 has no layer type "roi"'):
        upgraded('layers { layer { name: "x" type: "roi" } }')


def test_a_v0_field_of_another_type_is_dropped_with_a_warning():
    with pytest.warns(PrototxtWarning, match='V0 layer "r" of type "relu" does not use kernelsize; dropped'):
        new = upgraded('layers { layer { name: "r" type: "relu" kernelsize: 3 } }')
    assert new.layer[0] == caffe_pb2.LayerParameter(name="r", type="ReLU")


def test_v1_layers_among_v0_ones_stay():
    new = upgraded('layers { layer { name: "a" type: "relu" } } layers { name: "b" type: TANH }')
    assert [(x.name, x.type) for x in new.layer] == [("a", "ReLU"), ("b", "TanH")]


# V1.


def test_every_v1_type_has_a_name_today():
    assert set(V1_TYPES) == set(caffe_pb2.V1LayerParameter.LayerType.keys())
    for v1, v2 in V1_TYPES.items():
        assert upgraded(f"layers {{ type: {v1} }}").layer[0].type == v2


@pytest.mark.parametrize(
    ("v1", "v2"),
    [
        ("CROP", "Crop"), ("BN", "BN"), ("UNPOOLING", "Unpooling"), ("UPSAMPLE", "Upsample"), ("VIDEO_DATA", "VideoData"),
        ("WINDOW_SEG_DATA", "WindowSegData"), ("MCWINDOW_DATA", "MCWindowData"), ("CONVOLUTION3D", "Convolution3D"),
        ("MULTI_STAGE_MEANFIELD", "MultiStageMeanfield"), ("DENSE_IMAGE_DATA", "DenseImageData"),
    ],
)  # fmt: skip
def test_types_of_forks(v1, v2):
    assert parse_net(f'layers {{ name: "x" type: {v1} }}').param.layer[0] == caffe_pb2.LayerParameter(name="x", type=v2)


def test_the_first_eltwise_multiplied():
    assert upgraded('layers { type: ELTWISE_PRODUCT bottom: "a" }').layer[0] == caffe_pb2.LayerParameter(
        type="Eltwise", bottom=["a"], eltwise_param={"operation": caffe_pb2.EltwiseParameter.PROD}
    )


def test_numbers_of_forks_types_are_unknown():
    """40 is CROP in one fork and DOWN_SAMPLING in another: the schema gives them numbers that no fork has."""
    numbers = set(caffe_pb2.V1LayerParameter.LayerType.values())
    assert not numbers & set(range(40, 92001))
    assert upgrade_net(caffe_pb2.NetParameter.FromString(b"\x12\x02\x28\x28"))[0].layer[0].type == ""


def test_a_type_that_no_fork_has():
    with pytest.raises(PrototxtError, match="did you mean DROPOUT"):
        parse_net("layers { type: DROPUOT }")
    with pytest.raises(PrototxtError) as caught:
        parse_net("layers { type: DROPS }")
    assert "did you mean" not in str(caught.value)


def test_every_v1_block_has_its_field_in_v2():
    v2 = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    for field in caffe_pb2.V1LayerParameter.DESCRIPTOR.fields:
        if field.message_type and field.name != "layer":
            assert v2[field.name].message_type is field.message_type


def test_lists_about_learnable_blobs_become_param_blocks():
    new = upgraded('layers { blobs_lr: 1 blobs_lr: 2 weight_decay: 3 param: "w" param: "b" blob_share_mode: PERMISSIVE }')
    assert new.layer[0] == text_format.Parse(
        'param { name: "w" share_mode: PERMISSIVE lr_mult: 1 decay_mult: 3 } param { name: "b" lr_mult: 2 }',
        caffe_pb2.LayerParameter(),
    )


def test_transform_fields_move_only_when_one_is_there():
    plain = 'layers { type: DATA data_param { source: "x" } }'
    assert not upgraded(plain).layer[0].HasField("transform_param")
    new = upgraded(plain + "layers { type: IMAGE_DATA image_data_param { crop_size: 7 mirror: true } }")
    assert new.layer[0].HasField("transform_param")
    assert new.layer[1].transform_param == caffe_pb2.TransformationParameter(crop_size=7, mirror=True)
    assert new.layer[1].image_data_param == caffe_pb2.ImageDataParameter()


# Inputs, BatchNorm, both generations at once.


def test_inputs_become_the_first_layer():
    new, origins = upgrade_net(net('input: "a" input: "b" input_dim: [1, 2, 3, 4, 5, 6, 7, 8] layer { name: "x" }'))
    assert origins == [INPUT_FIELDS, 0]
    assert [x.name for x in new.layer] == ["input", "x"]
    assert [list(x.dim) for x in new.layer[0].input_param.shape] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert not new.input and not new.input_dim


def test_input_shapes_win_over_input_dims():
    new = upgraded('input: "a" input_shape { dim: 7 } input_dim: 1')
    assert [list(x.dim) for x in new.layer[0].input_param.shape] == [[7]]


def test_batch_norm_params_are_frozen_when_there_are_three():
    new = upgraded('layer { type: "BatchNorm" param {} param {} param { name: "c" } } layer { type: "BatchNorm" param {} }')
    assert [(x.lr_mult, x.decay_mult, x.name) for x in new.layer[0].param] == [(0, 0, ""), (0, 0, ""), (0, 0, "c")]
    assert new.layer[1].param[0].lr_mult == 1


def test_both_generations_at_once_are_refused():
    with pytest.raises(UpgradeError, match="the net has 2 layer and 1 layers"):
        upgraded("layer {} layers {} layer {}")


def test_the_original_is_left_alone():
    old = net('input: "a" input_dim: [1, 2, 3, 4] layers { type: DATA data_param { scale: 2 } }')
    before = old.SerializeToString(deterministic=True)
    upgrade_net(old)
    assert old.SerializeToString(deterministic=True) == before


def test_an_empty_net_stays_empty():
    assert upgrade_net(caffe_pb2.NetParameter(name="n")) == (caffe_pb2.NetParameter(name="n"), [])


# Solvers.


@pytest.mark.parametrize("old", SOLVER_TYPES)
def test_solver_types(old):
    new = parse_solver(f"solver_type: {old}")
    assert new.type == SOLVER_TYPES[old] and not new.HasField("solver_type")


def test_a_solver_without_a_type_stays_without():
    assert not upgrade_solver(caffe_pb2.SolverParameter(base_lr=1)).HasField("type")


def test_snapshot_prefix_defaults_to_the_solvers_name(tmp_path):
    path = tmp_path / "my.solver.prototxt"
    path.write_text("base_lr: 1")
    assert read_solver(path).snapshot_prefix == str(tmp_path / "my.solver")
    assert not parse_solver("base_lr: 1").HasField("snapshot_prefix")


def test_a_snapshot_prefix_that_is_a_folder_gets_the_solvers_name(tmp_path):
    path = tmp_path / "my.prototxt"
    path.write_text(f'snapshot_prefix: "{tmp_path.as_posix()}"')
    assert Path(read_solver(path).snapshot_prefix) == tmp_path / "my"
    path.write_text('snapshot_prefix: "elsewhere/net"')
    assert read_solver(path).snapshot_prefix == "elsewhere/net"


def test_sources_follow_the_layers():
    text = 'input: "x" input_dim: [1, 2, 3, 4]\nlayers { name: "a" type: RELU }\nlayers {\n name: "b" type: TANH }'
    assert [x.place.line for x in parse_net(text).sources] == [1, 2, 3]
