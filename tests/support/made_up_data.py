"""A published net with made-up data: its data layers become inputs, of the shapes that their readers ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from minicaffe import TEST, TRAIN, Error, Layer, Net, registry
from minicaffe.detection.inputs import fill_inputs
from minicaffe.formats.forks import fork_names
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.formats.source import LayerSource
from minicaffe.layer_list import filter_layers
from minicaffe.layers.shape.split import Split
from minicaffe.mode import Phase
from minicaffe.net_arguments import state_applied
from minicaffe.proto import caffe_pb2

NOT_PRODUCED = "is not produced by any layer"
Shape = tuple[int, ...]
Wish = Callable[[Layer, list[Shape]], dict[int, Shape]]
"""From a layer and its bottoms' shapes: the shapes that it wants of some bottoms, by index."""


@dataclass
class Made:
    """A net, and the readers of the inputs that were data layers' tops: a layer type and its bottom's index."""

    net: Net
    readers: dict[str, tuple[str, int]]


def build(path: Path, phase: Phase | None = None) -> Made:
    """Return the net of a prototxt in this phase, with inputs in place of data layers.

    By default the phase follows from the file's name; if a bottom is then missing, it is the other one. The files that the
    prototxt names are made up in the working directory. Raises minicaffe.Error.
    """
    file = read_net(path)
    make_up_files(file.param)
    if phase is not None:
        return _build(file, phase)
    phase = TRAIN if is_train(file, path) else TEST
    try:
        return _build(file, phase)
    except Error as error:
        if NOT_PRODUCED not in str(error):
            raise
        with suppress(Error):
            return _build(file, TEST if phase == TRAIN else TRAIN)
        raise


def _build(file: NetFile, phase: Phase) -> Made:
    stages = [rule.stage[0] for layer in file.param.layer for rule in layer.include if rule.stage][:1]
    shapes = first_shapes(file, phase, stages)
    while True:
        wishes = Wishes(set(shapes))
        net = failed = None
        try:
            net = Net(with_inputs(file, shapes), phase, stages=stages, watch=wishes.watch, fork=fork_of(file.file))
        except Error as error:
            failed = error
        if all(shapes[name] == shape for name, shape in wishes.shapes.items()):
            if net is None:
                raise failed
            return Made(net, wishes.readers)
        shapes |= wishes.shapes


def fork_of(file: str) -> str:
    """Return the fork whose repository the file is from, if it is known: a folder is named OWNER__REPOSITORY."""
    repositories = (part.replace("__", "/", 1).lower() for part in Path(file).parts if "__" in part)
    return next((found for name in repositories if (found := fork_names().get(name))), "")


def is_train(file: NetFile, path: Path) -> bool:
    """Return whether it is a training net: by its name or, where that says nothing, because a layer has the phase TRAIN."""
    if any(word in path.stem for word in ("test", "deploy", "inference")) and "train" not in path.stem:
        return False
    rules = [rule for layer in file.param.layer for rule in layer.include]
    return "train" in path.stem or any(rule.HasField("phase") and rule.phase == caffe_pb2.TRAIN for rule in rules)


def is_data(layer: caffe_pb2.LayerParameter) -> bool:
    """Return whether a layer makes its tops from files. The type's name decides, so unknown types of forks count too.

    A DummyData that gives an image without pixels also counts.
    """
    if layer.bottom:
        return False
    if layer.type == "DummyData":
        return "im_info" in layer.top
    return layer.type.endswith("Data") or layer.type == "Python"


def is_built(layer: caffe_pb2.LayerParameter) -> bool:
    """Return whether minicaffe has the layer's type."""
    return layer.type != "Python" and registry.find(layer.type) is not None


def with_inputs(file: NetFile, shapes: dict[str, Shape]) -> NetFile:
    """Return the file with Inputs in place of data layers, unless they are a fork's and little else would be left."""
    param, sources = caffe_pb2.NetParameter(), list(file.sources)
    param.CopyFrom(file.param)
    if all(layer.type in ("Silence", "Slice") or (is_data(layer) and not is_built(layer)) for layer in param.layer):
        return file
    for i, layer in enumerate(param.layer):
        if is_data(layer) and all(top in shapes for top in layer.top):
            made = caffe_pb2.LayerParameter(name=layer.name, type="Input", top=layer.top)
            made.include.extend(layer.include)
            made.exclude.extend(layer.exclude)
            for top in layer.top:
                made.input_param.shape.add(dim=shapes[top])
            layer.CopyFrom(made)
            sources[i] = LayerSource(file.sources[i].place)  # without the removed fields
    return replace(file, param=param, sources=sources)


def make_up_files(param: caffe_pb2.NetParameter) -> None:
    """Write the lists of images and label maps that detection layers read, where their names are relative."""
    for layer in param.layer:
        evaluation = layer.detection_evaluate_param
        if evaluation.name_size_file.startswith(".."):
            evaluation.name_size_file = Path(evaluation.name_size_file).name
        saving = layer.detection_output_param.save_output_param
        for name in (saving.name_size_file, layer.detection_evaluate_param.name_size_file):
            _write(name, "".join(f"{i} 375 500\n" for i in range(5000)))
        count = layer.detection_output_param.num_classes
        items = (f'item {{ name: "{i}" label: {i} display_name: "{i}" }}\n' for i in range(count))
        _write(saving.label_map_file, "".join(items))
        if layer.type == "MultiStageMeanfield":
            for name in ("spatial.par", "bilateral.par"):
                _write(name, "3 " * 100)


def _write(name: str, text: str) -> None:
    if name and not Path(name).is_absolute() and ".." not in Path(name).parts:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


# Shapes that a data layer's own fields give.

IMAGES: dict[str, Shape] = {
    "mnist": (2, 1, 28, 28),
    "/lenet": (2, 1, 28, 28),
    "cifar": (2, 3, 32, 32),
    "VDSR": (2, 1, 41, 41),
    "segnet_": (1, 3, 360, 480),
    "enet_": (1, 3, 512, 1024),
    "captcha/crnn": (64, 3, 32, 128),
    "crnn.caffe": (523, 3, 32, 128),
    "pose_train": (1, 4, 368, 368),
    "inception_rgb_train": (2, 9, 224, 224),
    "inception_flow_train": (2, 30, 224, 224),
    "generic_window": (5, 6, 227, 227),
    "square_box": (5, 6, 227, 227),
    "SqueezeDet_": (2, 3, 416, 416),
    "caffe-yolo/": (2, 3, 448, 448),
    "indoor/test.": (1, 3, 416, 416),
    "yolov2": (2, 3, 416, 416),
    "ESPCN": (2, 1, 17, 17),
    "FSRCNN": (2, 1, 11, 11),
    "ocr/": (2, 3, 32, 280),
}
"""An image's shape by a word in the net's path, where the prototxt leaves it to the records."""
TOPS: dict[str, Shape] = {
    "im_info": (1, 3),
    "image_sizes": (1, 2),
    "gt_boxes": (3, 5),
    "rois": (4, 5),
    "masks": (4, 1, 14, 14),
    "box_labels": (4,),
    "mask_labels": (4,),
    "seg_label": (1, 1, 32, 32),
    "mask": (1, 1, 64, 64),
}
"""What detection's data layers make beside the image."""
LABELS: dict[str, Shape] = {
    "pose_train": (1, 114, 46, 46),
    "captcha/crnn": (64, 5),
    "crnn.caffe": (523, 5),
}
"""Labels whose first reader is no loss, by a word in the net's path."""


def first_shapes(file: NetFile, phase: Phase, stages: Sequence[str]) -> dict[str, Shape]:
    """Return the shapes of all tops of data layers: the first is an image, others one number an item."""
    state = state_applied(file.param, phase, 0, stages).state
    kept = filter_layers([(layer, None) for layer in file.param.layer], state)
    shapes: dict[str, Shape] = {}
    for layer, _ in kept:
        if layer.type == "DummyData":
            shapes |= {top: tuple(shape.dim) for top, shape in zip(layer.top, layer.dummy_data_param.shape)}
        elif is_data(layer):
            image = image_shape(layer, file.file)
            if set(layer.top) & set(TOPS):
                image = (1, *image[1:])
            for i, top in enumerate(layer.top):
                label = by_word(LABELS, file.file) or (field_labels(layer, image) if top.startswith("label_") else image[:1])
                shapes[top] = TOPS.get(top) or (image if i == 0 and "label" not in top else label)
    return shapes


def field_labels(layer: caffe_pb2.LayerParameter, image: Shape) -> Shape:
    """Cascade R-CNN's labels, a cell for each 16 pixels."""
    return (1, 6, image[2] // 16, image[3] // 16) if layer.type == "DetectionData" else (1, 6, 8, 8)


def by_word(table: dict[str, Shape], path: str) -> Shape | None:
    return next((shape for word, shape in table.items() if word.lower() in path.lower()), None)


def image_shape(layer: caffe_pb2.LayerParameter, path: str) -> Shape:
    """Return an image's shape, with a batch of two if possible, since few layers read the batch size."""
    transform, image, memory = layer.transform_param, layer.image_data_param, layer.memory_data_param
    if layer.type == "VideoData" and "c3d" in path.lower():
        return 2, 3, 16, transform.crop_size, transform.crop_size  # clips of 16 frames
    if transform.HasField("resize_param"):
        return 2, 3, transform.resize_param.height, transform.resize_param.width
    if known := by_word(IMAGES, path + layer.data_param.source):
        return known
    if memory.height:
        return 2, memory.channels, memory.height, memory.width
    height, width = (transform.crop_size,) * 2 if transform.crop_size else (image.new_height, image.new_width)
    return 2, 3, height or 224, width or 224


# Shapes that readers ask for.


def same_as_first(layer: Layer, shapes: list[Shape]) -> dict[int, Shape]:
    return dict.fromkeys(range(1, len(shapes)), shapes[0])


def class_labels(layer: Layer, shapes: list[Shape]) -> dict[int, Shape]:
    """Return a class for each item and place, without the axis of the scores."""
    axis = layer.param.softmax_param.axis if layer.type == "SoftmaxWithLoss" else layer.param.accuracy_param.axis
    return {1: tuple(n for i, n in enumerate(shapes[0]) if i != axis % len(shapes[0]))} if shapes[0] else {}


def boxes(index: int) -> Wish:
    return lambda layer, shapes: {index: (1, 1, 2, 8)}


WISHES: dict[str, Wish] = {
    "EuclideanLoss": same_as_first,
    "SigmoidCrossEntropyLoss": same_as_first,
    "SmoothL1Loss": same_as_first,
    "Eltwise": same_as_first,
    "SoftmaxWithLoss": class_labels,
    "Accuracy": class_labels,
    "EltwiseAccuracy": class_labels,
    "MultiBoxLoss": boxes(3),
    "DetectionEvaluate": lambda layer, shapes: {1: (3, 8) if len(shapes) == 3 else (1, 1, 2, 8)},
    "WarpCTCLoss": lambda layer, shapes: {1: (shapes[0][1], 6)},
    "RegionLoss": lambda layer, shapes: {1: (*shapes[0][:1], 10)},
    "ProposalTarget": lambda layer, shapes: {1: (3, 8) if layer.param.HasField("proposal_target_param") else (3, 5)},
    "YoloSeg": lambda layer, shapes: {1: shapes[0]},
    "SegmentationEvaluate": lambda layer, shapes: {1: shapes[0]},
    "SqueezeDetLoss": lambda layer, shapes: {3: (*shapes[1][:1], 10)},
    "DetectionLoss": lambda layer, shapes: {1: detection_labels(layer, shapes[0])},
    "EvalDetection": lambda layer, shapes: {1: eval_labels(layer, shapes[0])},
}


def detection_labels(layer: Layer, cells: Shape) -> Shape:
    """Return the labels of MS-CNN's or caffe-yolo's DetectionLoss."""
    param = layer.param.detection_loss_param
    return (*cells[:1], 6, *cells[2:]) if param.cls_num else (*cells[:1], 7 * param.side**2)


def eval_labels(layer: Layer, cells: Shape) -> Shape:
    """Return the labels of Intel's, caffe-yolov2's or caffe-yolo's EvalDetection."""
    param = layer.param.eval_detection_param
    if not param.biases:
        return *cells[:1], 7 * param.side**2
    return (1, 1, 2, 8) if layer.fork.name == "intel" else (*cells[:1], 150)


@dataclass
class Wishes:
    """The shapes and values that readers of data layers' tops need, found while a net is built."""

    tops: set[str]
    shapes: dict[str, Shape] = field(default_factory=dict)
    readers: dict[str, tuple[str, int]] = field(default_factory=dict)
    copied: dict[str, str] = field(default_factory=dict)

    def watch(self, net: Net, layer: Layer, step: str) -> None:
        if step != "created":
            return
        if isinstance(layer, Split):
            self.copied |= {top: self.copied.get(layer.param.bottom[0], layer.param.bottom[0]) for top in layer.param.top}
            return
        if layer.type in ("Gather", "Scatter"):
            self.copied |= {top: self.copied.get(name, name) for name, top in zip(layer.param.bottom, layer.param.top)}
        names = [self.copied.get(name, name) for name in layer.param.bottom]
        if layer.type not in WISHES or not set(names) & self.tops or any(b not in net.blobs for b in layer.param.bottom):
            return
        wanted = WISHES[layer.type](layer, [net.blobs[name].shape for name in layer.param.bottom])
        for i, name in enumerate(names):
            if name in self.tops and i in wanted:
                self.shapes.setdefault(name, wanted[i])
                self.readers.setdefault(name, (layer.type, i))


# Values.

LARGEST = 4.0
BOXES = [[0, 1, 0, 0.1, 0.1, 0.6, 0.7, 0], [0, 1, 0, 0.3, 0.2, 0.9, 0.8, 0]]
"""As AnnotatedData makes them: item, class, number, the corners over the image's size, difficult."""
TRUE_BOXES = [[20, 30, 120, 100, 1], [50, 60, 160, 190, 2], [5, 9, 200, 180, 1]]
"""As RoIData makes them: the corners in pixels, class."""


def fill(made: Made, seed: int) -> None:
    """Fill all inputs of the net with values that their readers take; the selector of a Filter keeps as many channels."""
    net = made.net
    for layer in net.layers:
        if layer.weight_names == ("selector",):
            layer.blobs[0].data[layer.param.filter_param.num_output :] = 0
    fill_inputs(net, {}, seed=seed)
    for name in net.inputs:
        values = net.blobs[name].data
        reader, _ = made.readers.get(name, ("", 0))
        if name == "gt_boxes" and values.shape[1] == 8:
            targets = [layer.param.proposal_target_param for layer in net.layers if layer.type == "ProposalTarget"]
            most = min((param.cls_num - 1 for param in targets), default=2)
            values[...] = [[0, *corners, min(label, most), 0, 0] for *corners, label in TRUE_BOXES]
        elif name.startswith("label_") and values.ndim == 4:
            values[...] = 0
            values[:, :, 2, 3] = (1, 56, 40, 60, 50, 0.8)
        elif name == "image_sizes":
            values[...] = net.blobs[net.inputs[0]].shape[2:4]
        elif reader in ("MultiBoxLoss", "DetectionEvaluate") or (reader == "EvalDetection" and values.shape[-1] == 8):
            values[...] = BOXES
        elif reader == "SqueezeDetLoss":
            values[...] = np.ravel(TRUE_BOXES[:2])
        elif reader in ("DetectionLoss", "EvalDetection"):
            values[...] = 0
            if values.shape[-1] == 150:
                values[:, :5] = (1, 0.4, 0.5, 0.3, 0.6)
            else:  # in the fifth cell an object of class 1
                cells = values.shape[1] // 7
                values[:, [cells + 4, 2 * cells + 4]] = 1
                values[:, 3 * cells + 16 : 3 * cells + 20] = (0.6, 0.1, 0.3, 0.2)
        elif name == "im_info":  # PVANet's has further numbers
            values[...] = 1
            values.reshape(-1)[:2] = net.blobs[net.inputs[0]].shape[2:4]
        elif name == "mask":
            values[...] = values > 0
        elif name == "gt_boxes":
            values[...] = TRUE_BOXES


def keep_in_range(net: Net) -> None:
    """Let forward scale the weights of each linear layer so that its outputs stay below LARGEST, through any depth, and
    give the layers before YOLO's outputs a bias that leaves few boxes."""

    def scale_down(i: int) -> None:
        node = net.nodes[i]
        largest = max((float(np.abs(top.data).max(initial=0)) for top in node.tops), default=0.0) if node.layer.linear else 0
        if largest > LARGEST:
            for array in [top.data for top in node.tops] + [blob.data for blob in node.layer.blobs]:
                array *= array.dtype.type(LARGEST / largest)

    net.after_forward(scale_down)
    producers = {top: node for node in net.nodes for top in node.top_names}
    for node in net.nodes:
        for name in node.bottom_names if node.layer.type.lower().startswith("yolo") else ():
            producer = producers[name]
            if producer.layer.linear and len(producer.layer.blobs) > 1:
                producer.layer.blobs[1].data[...] = -LARGEST
