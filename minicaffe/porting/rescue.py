"""The prototxt of a lost model: the training net in a .caffemodel, turned into a net to run.

    rescued = rescue("net.caffemodel")
    rescued.text            # the prototxt; rescued.notes lists the changes

Data layers become inputs. Losses become the layers of their probabilities, or are removed, and so are layers that feed only
labels, Splits, layers for TRAIN, learning rates and fillers.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from minicaffe.errors import WeightsError, on_one_line
from minicaffe.formats.prototxt import to_text
from minicaffe.formats.stored_net import read_stored_net
from minicaffe.formats.weights import read_weights
from minicaffe.layer import Layer
from minicaffe.layer_list import Rules
from minicaffe.layers.data.hdf5 import HDF5Output
from minicaffe.layers.data.input import Input, Parameter
from minicaffe.layers.loss.euclidean_loss import ContrastiveLoss
from minicaffe.layers.loss.multinomial_logistic_loss import InfogainLoss
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import SigmoidCrossEntropyLoss
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.metric.accuracy import Accuracy
from minicaffe.layers.neuron.functions import Sigmoid
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.ohem import BoxAnnotatorOHEM, SoftmaxWithLossOHEM
from minicaffe.layers.proposal.proposal_target import ProposalTarget
from minicaffe.layers.shape.split import Silence, Split
from minicaffe.layers.ssd.detection_evaluate import DetectionEvaluate
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.multi_box_loss import MultiBoxLoss
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

from . import rescue_inputs
from .graph import Graph, bypass, clear_fillers

LayerParameter = caffe_pb2.LayerParameter

PROBABILITIES: dict[type[Layer], type[Layer]] = {
    SoftmaxWithLoss: Softmax,
    SoftmaxWithLossOHEM: Softmax,
    InfogainLoss: Softmax,
    SigmoidCrossEntropyLoss: Sigmoid,
}
"""Losses, and the layers that compute their probabilities in TEST."""
ENDS = (Accuracy, Silence, HDF5Output, DetectionEvaluate, BoxAnnotatorOHEM)
"""Layers for training or evaluation."""
EVALUATIONS = (Accuracy, DetectionEvaluate)
"""Ends whose first bottom is a prediction."""
OLD_END = "BoxAnnotator"
"""BoxAnnotatorOHEM's name in early files of R-FCN."""
TARGETS = {"rpn.anchor_target_layer": False, "rpn.proposal_target_layer": True}
"""Python layers that make training targets; whether their first top is a sample of their first bottom."""
STATISTICS = "BatchNorm uses the stored statistics; use_global_stats of the training net is ignored."
TRAINING_FIELDS = ("loss_weight", "propagate_down", "include", "exclude", "phase", "loss_param", "blobs")


@dataclass
class Rescued:
    """A net to run, and notes on the changes. guesses: sizes of inputs that the file does not determine."""

    param: caffe_pb2.NetParameter
    notes: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    file: str = ""

    @property
    def text(self) -> str:
        """The prototxt."""
        head = [f"Rescued by minicaffe from {os.path.basename(self.file)}", *self.notes]
        return "".join(f"# {on_one_line(line)}\n" for line in head) + to_text(self.param)


def rescue(
    path: str | os.PathLike[str], fork: str = "", shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> Rescued:
    """Return a net for TEST from a .caffemodel of any fork and age.

    fork: its name, for a file whose fields forks read in different ways. shapes: of inputs; the others' are derived from the
    weights. Raises WeightsError, and Error for an unknown fork and for a shape of a blob that is no input.
    """
    param, found = read_stored_net(path, fork)
    rescued = Rescued(caffe_pb2.NetParameter(name=param.name), file=os.fspath(path))
    if found.evidence:
        rescued.notes.append(f"The file was written by {found}.")
    layers = clean(list(param.layer), rescued.notes)
    if not layers:
        raise WeightsError(
            f"{os.fspath(path)}: it contains no net: none of its {len(param.layer)} layers computes an output from "
            "bottoms (the file may have only weights: `minicaffe dump --list` shows them)"
        )
    stored = read_weights(path)
    layers, rescued.guesses = rescue_inputs.add_inputs(layers, list(param.layer), stored, shapes, rescued.notes)
    if any(layer.batch_norm_param.HasField("use_global_stats") and class_of(layer) is BatchNorm for layer in layers):
        rescued.notes.append(STATISTICS)
    leave_out_training(layers, {layer.name for layer in stored.layers if layer.blobs})
    rescued.param.layer.extend(layers)
    return rescued


TEST_STATE = caffe_pb2.NetState(phase=caffe_pb2.TEST)
TRAIN_STATE = caffe_pb2.NetState(phase=caffe_pb2.TRAIN)


def clean(layers: list[LayerParameter], notes: list[str], state: caffe_pb2.NetState = TEST_STATE) -> list[LayerParameter]:
    """Return the layers that compute outputs in this state, connected.

    Data layers are removed, so some bottoms have no maker.
    """
    layers = bypass(_of_test(layers, notes, state), lambda layer: issubclass(class_of(layer), Split))
    layers, wanted = _without_losses(_without_targets(layers), notes, state)
    graph = Graph(layers)
    needed = graph.before(value for name, value in graph.last.items() if name in wanted)
    if gone := [layer.name for i, layer in graph.layers.items() if i not in needed and layer.bottom]:
        notes.append(f"Removed, for labels and targets only: {', '.join(gone)}.")
    return [layers[i] for i in sorted(needed) if layers[i].bottom or class_of(layers[i]) in (Input, Parameter)]


def _of_test(layers: list[LayerParameter], notes: list[str], state: caffe_pb2.NetState) -> list[LayerParameter]:
    """Leave out layers for other states, such as TRAIN, and their readers, unless no other layer makes their tops."""
    given = {top for layer in layers if rules_keep(layer, state) for top in layer.top}
    gone = set[str]()
    kept = []
    for layer in layers:
        if rules_keep(layer, state):
            gone.difference_update(layer.top)
        elif not layer.bottom:  # data layers of TRAIN stay: they become inputs
            if given.issuperset(layer.top):
                continue
        elif given.isdisjoint(layer.top) and gone.isdisjoint(layer.bottom[:1] if is_loss(layer) else layer.bottom):
            pass  # the loss shows which blob is the output, even without its labels
        else:
            gone.update(set(layer.top) - given)
            where = "TRAIN" if rules_keep(layer, TRAIN_STATE) else "other levels or stages"
            notes.append(f"Removed, for {where} only: {layer.name} ({layer.type}).")
            continue
        kept.append(layer)
    return kept


def rules_keep(layer: LayerParameter, state: caffe_pb2.NetState) -> bool:
    """Return True if a layer's include and exclude rules keep it in this state."""
    meets = Rules(state).meets
    return any(map(meets, layer.include)) if layer.include else not any(map(meets, layer.exclude))


def _without_targets(layers: list[LayerParameter]) -> list[LayerParameter]:
    """Return the layers without those that make targets. The heads then read the proposals that these sampled."""
    kept: list[LayerParameter] = []
    for layer in layers:
        samples = TARGETS.get(layer.python_param.module) if layer.type == "Python" else None
        if class_of(layer) is ProposalTarget or samples:
            rois, proposed = layer.top[0], layer.bottom[0]
            for earlier in kept:  # the proposals take the name that the heads read: rois
                earlier.bottom[:] = [rois if name == proposed else name for name in earlier.bottom]
                earlier.top[:] = [rois if name == proposed else name for name in earlier.top]
        elif class_of(layer) is not AnchorTarget and samples is None:
            kept.append(layer)
    return kept


def _without_losses(
    layers: list[LayerParameter], notes: list[str], state: caffe_pb2.NetState
) -> tuple[list[LayerParameter], set[str]]:
    """Return the layers with probabilities in place of losses, unless the net has its own end, and the output blobs."""
    losses = [layer for layer in layers if is_loss(layer)]
    kept = [x for x in layers if not is_loss(x) and class_of(x) not in ENDS and x.type != OLD_END]
    graph = Graph(layers)
    unread = {graph.name(value) for value in graph.unread()}
    wanted = (unread | _evaluated(layers, losses)) & {name for layer in kept if layer.bottom for name in layer.top}
    # GoogLeNet's auxiliary classifiers weigh 0.3 next to 1; the two losses of a detector weigh the same.
    heaviest = max((weight_of(layer) for layer in losses), default=0.0)
    names = Counter(name for layer in kept for name in [layer.name, *layer.top])
    own = {id(layer): _own_end(layer, kept, state) for layer in losses}
    computed = set[tuple[type[Layer], str]]()
    for layer in losses:
        predicted = list(layer.bottom[: 2 if class_of(layer) is ContrastiveLoss else 1])
        made = PROBABILITIES.get(class_of(layer))
        if made and 0 < weight_of(layer) < heaviest / 2:  # weight 0 marks an output trained earlier
            notes.append(f"Removed with its inputs, an auxiliary loss: {layer.name} (loss_weight {weight_of(layer):g}).")
        elif end := own[id(layer)]:
            notes.append(
                f"Removed, a loss: {layer.name} ({layer.type}). The net has an output for TEST: {end.name} ({end.type})."
            )
            wanted.update(end.top)
        elif class_of(layer) is MultiBoxLoss:
            kept.extend(_detections(layer))
            wanted.add(kept[-1].top[0])
            notes.append(f"DetectionOutput replaces {layer.name} (MultiBoxLoss), with SSD's usual thresholds.")
        elif made is None or (made, predicted[0]) in computed:
            notes.append(f"Removed, a loss: {layer.name} ({layer.type}).")
            wanted.update(predicted)
        else:
            new = _probabilities(layer, names)
            kept.append(new)
            computed.add((class_of(new), new.bottom[0]))
            wanted.update(new.top)
            notes.append(f"{new.type} {new.name} replaces the loss {layer.name} ({layer.type}).")
    return kept, wanted


def _evaluated(layers: list[LayerParameter], losses: list[LayerParameter]) -> set[str]:
    """Return the predictions that evaluation layers read and no loss reads."""
    return {x.bottom[0] for x in layers if class_of(x) in EVALUATIONS} - {name for loss in losses for name in loss.bottom[:1]}


def _own_end(loss: LayerParameter, layers: list[LayerParameter], state: caffe_pb2.NetState) -> LayerParameter | None:
    """Return the layer that ends the net in this state in place of the loss.

    It is the last layer after the loss's predictions that makes what would replace the loss, with no weights between them. If
    the state leaves the loss out, it is the last layer that does so or that the state's rules add, with or without weights.
    """
    reached, end, is_kept = set(loss.bottom[:1]), None, rules_keep(loss, state)
    made = DetectionOutput if class_of(loss) is MultiBoxLoss else PROBABILITIES.get(class_of(loss))
    for layer in layers:
        if reached.isdisjoint(layer.bottom) or (is_kept and class_of(layer).weight_names != ()):
            continue
        reached.update(layer.top)
        if class_of(layer) is made or (not is_kept and (layer.include or layer.exclude) and rules_keep(layer, state)):
            end = layer
    return end


def _detections(loss: LayerParameter) -> list[LayerParameter]:
    """Return the layers of SSD's test nets that correspond to the train net's MultiBoxLoss."""
    given, (boxes, scores, priors) = loss.multibox_loss_param, loss.bottom[:3]
    reshape = LayerParameter(name=f"{scores}_reshape", type="Reshape", bottom=[scores], top=[f"{scores}_reshape"])
    reshape.reshape_param.shape.dim.extend([0, -1, given.num_classes])  # (N, P * K) to (N, P, K): a softmax per prior
    softmax = LayerParameter(name=f"{scores}_softmax", type="Softmax", bottom=reshape.top, top=[f"{scores}_softmax"])
    softmax.softmax_param.axis = 2
    flatten = LayerParameter(name=f"{scores}_flatten", type="Flatten", bottom=softmax.top, top=[f"{scores}_flatten"])
    flatten.flatten_param.axis = 1
    name = "detection_out"
    output = LayerParameter(name=name, type="DetectionOutput", bottom=[boxes, *flatten.top, priors], top=[name])
    param = output.detection_output_param
    param.num_classes, param.share_location, param.code_type = given.num_classes, given.share_location, given.code_type
    param.background_label_id, param.keep_top_k, param.confidence_threshold = given.background_label_id, 200, 0.01
    param.nms_param.nms_threshold, param.nms_param.top_k = 0.45, 400
    return [reshape, softmax, flatten, output]


def is_loss(layer: LayerParameter) -> bool:
    return layer.type.endswith(("Loss", "LossOHEM")) or any(layer.loss_weight)


def weight_of(layer: LayerParameter) -> float:
    return max(layer.loss_weight, default=1.0)


def _probabilities(loss: LayerParameter, names: Counter[str]) -> LayerParameter:
    """Return the layer that computes a loss's probabilities, named as in test nets: cls_prob for cls_score, else prob."""
    source = loss.bottom[0]
    name = source.replace("_score", "_prob") if "_score" in source else "prob"
    if names[name]:
        name = f"{source}_prob" if not names[f"{source}_prob"] else f"{loss.name}_prob"
    names[name] += 1
    new = LayerParameter(name=name, type=PROBABILITIES[class_of(loss)].type, bottom=[source], top=[name])
    if loss.HasField("softmax_param") and class_of(new) is Softmax:
        new.softmax_param.CopyFrom(loss.softmax_param)
    return new


def leave_out_training(layers: list[LayerParameter], stored: Collection[str]) -> None:
    """Clear the fields for training, and the fillers of layers whose weights are stored."""
    for layer in layers:
        for name in TRAINING_FIELDS:
            layer.ClearField(name)  # type: ignore[arg-type]
        names = [spec.name for spec in layer.param]
        del layer.param[:]
        if any(names):
            layer.param.extend([caffe_pb2.ParamSpec(name=name) for name in names])
        layer.batch_norm_param.ClearField("use_global_stats")  # the block may be empty now: removed below
        if layer.name in stored:
            clear_fillers(layer)
        if layer.HasField("batch_norm_param") and not layer.batch_norm_param.ListFields():
            layer.ClearField("batch_norm_param")
