"""Whole nets with values in their inputs, for the scripts that try something on all of them.

Those of examples/shapes, every net of ../shared/zoo, and of ../shared/models a test net of each backbone and method, with
seeded random weights, at 224x320.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from published_models import MODELS, SHARED, is_train, made_rois, randomize
from published_models import nets as published

from minicaffe import TEST, Net
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.inputs import fill_inputs
from minicaffe.files import read_text
from minicaffe.formats.prototxt import parse_net, read_net
from minicaffe.porting.onnx import Whole

Make = Callable[[], Net]

FORKS = {
    "SqueezeNet 1.0": "forresti__SqueezeNet/SqueezeNet_v1.0/deploy.prototxt",
    "ShuffleNet v1": "farmingyard__ShuffleNet/shufflenet_1x_g3_deploy.prototxt",
    "ShuffleNet v2": "farmingyard__ShuffleNet/shufflenet_v2_1x_deploy.prototxt",
    "MobileNet v2": "eric612__MobileNet-YOLO/models/mobilenetv2_voc/MobileNetV2.prototxt",
    "MobileNet-SSD": "chuanqi305__MobileNet-SSD/voc/MobileNetSSD_deploy.prototxt",
    "DenseNet 121": "shicai__DenseNet-Caffe/DenseNet_121.prototxt",
    "SE-ResNet-50": "hujie-frank__SENet/models/SE-ResNet-50.prototxt",
    "HED": "s9xie__hed/examples/hed/deploy.prototxt",
    "VDSR": "huangzehao__caffe-vdsr/Train/VDSR_net_deploy.prototxt",
    "SqueezeDet": "opencv__opencv_contrib/modules/dnn_objdetect/samples/data/SqueezeDet_deploy.prototxt",
    "ENet": "TimoSaemann__ENet/prototxts/enet_deploy_final.prototxt",
    "LightenedCNN": "AlfredXiangWu__face_verification_experiment/proto/LightenedCNN_A_deploy.prototxt",
    "CRNN": "beniz__caffe/examples/warpctc_captcha/crnn/deploy.prototxt",
    "WeChat's super-resolution": "WeChatCV__opencv_3rdparty/sr.prototxt",
}
FIXED_SIZE = ("MobileNetSSD_deploy", "SqueezeDet_deploy", "SE-ResNet-50")

SHAPES = Path(__file__).resolve().parents[1] / "examples" / "shapes"
ZOO = SHARED / "zoo"
CIFAR, BVLC, OPENCV = ZOO / "cifar10_bvlc_examples", ZOO / "bvlc_images", ZOO / "opencv_dnn_layers"
WITH_IMAGES = [
    ("yufacedetect_v2/yufacedetectnet-open-v2", "data", "yufacedetect_v2/test2.jpg", (104, 117, 123), 1.0),
    ("hyperlpr_mininet_ssd/mininet_ssd_v1", "data", "hyperlpr_mininet_ssd/demo.png", (127.5,) * 3, 0.007843),
    ("ultraface/RFB-320", "input", "ultraface/10.jpg", (127, 127, 127), 1 / 128),
    ("mtcnn/det1", "data", "mtcnn/test1.jpg", (127.5,) * 3, 0.0078125),
    ("mtcnn/det2", "data", "mtcnn/test1.jpg", (127.5,) * 3, 0.0078125),
    ("mtcnn/det3", "data", "mtcnn/test1.jpg", (127.5,) * 3, 0.0078125),
]
"""The net, its input, an image, the mean and the scale."""


def nets() -> Iterator[tuple[str, Make]]:
    """Their names, and what makes each."""
    yield "shapes R-FCN", lambda: shapes_net("rfcn")
    yield "shapes Faster R-CNN", lambda: shapes_net("faster_rcnn")
    if not SHARED.is_dir():
        return
    for name, *how in WITH_IMAGES:
        yield Path(name).name, lambda name=name, how=how: zoo_net(name, *how)
    yield "HorizonalFinemapping", horizontal_finemapping
    yield "cifar10_quick", lambda: cifar_net("cifar10_quick", "cifar10_quick_iter_4000.caffemodel")
    yield "cifar10_full", lambda: cifar_net("cifar10_full", "cifar10_full_iter_60000.caffemodel.h5")
    yield "cifar10_full_sigmoid", cifar_sigmoid
    for prototxt in sorted(OPENCV.glob("layer_*.prototxt")):
        yield prototxt.stem, lambda prototxt=prototxt: one_layer_net(prototxt)
    yield "reshape_and_slice", reshape_and_slice
    yield "CaffeNet", lambda: random_net(BVLC / "deploy.prototxt", 50)
    yield "LeNet", lambda: random_net(BVLC / "lenet.prototxt", 0.1)
    for name, prototxt in families().items():
        yield name, lambda prototxt=prototxt: published_net(prototxt)


def of_forks() -> Iterator[tuple[str, Make]]:
    """Yield a published net of each of further families, with seeded random weights, at 128x128 where it takes that."""
    for name, prototxt in FORKS.items() if (SHARED / "wild").is_dir() else ():
        yield name, lambda prototxt=prototxt: fork_net(SHARED / "wild" / prototxt)


def fork_net(prototxt: Path) -> Net:
    net = Net(prototxt, TEST)
    randomize(net, 4)
    for name in net.inputs:
        if len(net.blobs[name].shape) == 4 and min(net.blobs[name].shape[2:]) > 160 and prototxt.stem not in FIXED_SIZE:
            net.blobs[name].reshape(1, net.blobs[name].channels, 128, 128)
    net.reshape()
    fill_inputs(net, {}, seed=5)
    return net


def families() -> dict[str, Path]:
    """Return a test net of each backbone and method: "ZF faster_rcnn_end2end"."""
    found: dict[str, Path] = {}
    for path in reversed(published()):  # py-faster-rcnn's before py-R-FCN's, which are the same
        if not is_train(path):
            folders = path.relative_to(MODELS).parts[2:-1]
            found.setdefault(" ".join(folders), path)
    return dict(sorted(found.items()))


def large_nets() -> set[str]:
    """Return the names of those with more than 60 MB of weights, or a part of such a net."""
    return {"CaffeNet", *families()}


def shapes_net(kind: str) -> Net:
    folder, settings = SHAPES / kind, read_settings(SHAPES / "shapes.yml")
    net = Net(folder / "test.prototxt", TEST, weights=folder / f"shapes_{kind}.caffemodel", settings=settings)
    fill_inputs(net, {"data": str(SHAPES / "scene.png")})
    return net


def zoo_net(name: str, blob: str, image: str, means: tuple[float, ...], factor: float) -> Net:
    net = Net(ZOO / f"{name}.prototxt", TEST, weights=ZOO / f"{name}.caffemodel")
    settings = DetectionSettings(pixel_means=means)  # type: ignore[arg-type]
    fill_inputs(net, {blob: str(ZOO / image)}, settings=settings, factor=factor)
    return net


def horizontal_finemapping() -> Net:
    name = ZOO / "hyperlpr_mininet_ssd" / "HorizonalFinemapping"
    net = Net(name.with_suffix(".prototxt"), TEST, weights=name.with_suffix(".caffemodel"))
    fill_inputs(net, {}, seed=1)
    return net


def cifar_net(name: str, weights: str) -> Net:
    net = Net(CIFAR / f"{name}.prototxt", TEST, weights=CIFAR / weights)
    fill_inputs(net, {"data": str(BVLC / "cat.jpg")})
    return net


def cifar_sigmoid() -> Net:
    """Return a test net made from the net for training, the only published one."""
    file = read_net(CIFAR / "cifar10_full_sigmoid_train_test.prototxt", warn=False)
    for layer in list(file.param.layer):
        if layer.type in ("Data", "Accuracy", "SoftmaxWithLoss"):
            file.param.layer.remove(layer)
    data = file.param.layer.add(name="data", type="Input", top=["data"])
    data.input_param.shape.add(dim=[2, 3, 32, 32])
    file.param.layer.insert(0, file.param.layer.pop())
    return with_noise(Net(file.param, TEST, weights=CIFAR / "cifar10_full_sigmoid_iter_60000.caffemodel"), 5)


def one_layer_net(prototxt: Path) -> Net:
    weights = prototxt.with_suffix(".caffemodel")
    return with_noise(Net(prototxt, TEST, weights=weights if weights.exists() else None), 5)


def reshape_and_slice() -> Net:
    """Return the net with an input shape, which its file lacks."""
    text = read_text(OPENCV / "reshape_and_slice_routines.prototxt")
    return with_noise(Net(parse_net(text + "\ninput_shape { dim: 6 dim: 12 }"), TEST), 5)


def random_net(prototxt: Path, spread: float) -> Net:
    net = Net(prototxt, TEST)
    randomize(net, 4)
    fill_inputs(net, {}, seed=5)
    net.blobs["data"].data[...] *= spread
    return net


def published_net(prototxt: Path) -> Net:
    net = Net(prototxt, TEST)
    randomize(net, 4)
    net.blobs["data"].reshape(1, 3, 224, 320)
    net.reshape()
    with_noise(net, 5)
    if "rpn_bbox_pred" in net.params:  # as small as trained deltas: a delta of 30 makes boxes beyond float32's pixels
        net.forward(end="rpn_bbox_pred")
        most = float(abs(net.blobs["rpn_bbox_pred"].data).max())
        for blob in net.params["rpn_bbox_pred"]:
            blob.data[...] /= max(most, 1)
    if "rois" in net.inputs:
        net.blobs["rois"].reshape(20, 5)
        net.blobs["rois"].data[...] = made_rois(20, (224, 320))
    return net


def with_noise(net: Net, seed: int) -> Net:
    """Pixels around 0 and what goes with them."""
    fill_inputs(net, {}, seed=seed)
    for name in net.inputs:
        if name in ("data", "input"):
            net.blobs[name].data[...] *= 50
    return net


def photos() -> dict[str, tuple[Path, Whole]]:
    """Return for each detector that `minicaffe detect` runs a photo, and the ends before and after the net."""
    scene, ours = SHAPES / "scene.png", Whole(threshold=0.05)
    found = {"shapes R-FCN": (scene, ours), "shapes Faster R-CNN": (scene, ours)}
    for name, _, image, means, factor in WITH_IMAGES[:2]:
        found[Path(name).name] = (ZOO / image, Whole(threshold=0.05, means=means, scale_factor=factor))
    found["ZF faster_rcnn_end2end"] = (ZOO / "pyfaster_demo" / "004545.jpg", Whole(threshold=0.049))
    return found
