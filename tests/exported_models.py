"""Export whole nets to ONNX, run them in onnxruntime, and print how far their outputs are from minicaffe's.

    python tests/exported_models.py [--match TEXT] [--fold] [--opset N]

The two nets of examples/shapes; the models of ../shared/zoo on their own images; of ../shared/models the published Faster
R-CNN (ZF, VGG16) and R-FCN (ResNet-50) nets with seeded random weights, at 224x320. Each net that takes another size of image
runs at one too, in the model that was exported before. The exit status is 1 where an output differs by more than 1e-4 of its
largest number, or the boxes are not the same in the same order. Then the detectors as a whole, a photo in and boxes out, beside
detect.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from published_models import MODELS, SHARED, randomize

from minicaffe import TEST, Net
from minicaffe.data.images import load_image
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.inputs import fill_inputs
from minicaffe.porting.onnx import DEFAULT_OPSET, Whole, compare_with_detect, compare_with_net, export_onnx

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ROOT / "examples" / "shapes"
ZOO = SHARED / "zoo"
PUBLISHED = {
    "ZF, Faster R-CNN": "py-faster-rcnn/pascal_voc/ZF/faster_rcnn_end2end/test.prototxt",
    "VGG16, Faster R-CNN": "py-faster-rcnn/pascal_voc/VGG16/faster_rcnn_end2end/test.prototxt",
    "ResNet-50, R-FCN": "py-R-FCN/pascal_voc/ResNet-50/rfcn_end2end/test_agnostic.prototxt",
}
ZOO_NETS = [
    ("yufacedetect_v2/yufacedetectnet-open-v2", "data", "yufacedetect_v2/test2.jpg", (104, 117, 123), 1.0),
    ("hyperlpr_mininet_ssd/mininet_ssd_v1", "data", "hyperlpr_mininet_ssd/demo.png", (127.5,) * 3, 0.007843),
    ("hyperlpr_mininet_ssd/HorizonalFinemapping", "data", "", (), 1.0),
    ("ultraface/RFB-320", "input", "ultraface/10.jpg", (127, 127, 127), 1 / 128),
    ("mtcnn/det1", "data", "mtcnn/test1.jpg", (127.5,) * 3, 0.0078125),
    ("mtcnn/det2", "data", "mtcnn/test1.jpg", (127.5,) * 3, 0.0078125),
    ("mtcnn/det3", "data", "mtcnn/test1.jpg", (127.5,) * 3, 0.0078125),
]
CIFAR = ZOO / "cifar10_bvlc_examples"


def shapes_net(kind: str) -> Callable[[], Net]:
    def make() -> Net:
        folder, settings = SHAPES / kind, read_settings(SHAPES / "shapes.yml")
        net = Net(folder / "test.prototxt", TEST, weights=folder / f"shapes_{kind}.caffemodel", settings=settings)
        fill_inputs(net, {"data": str(SHAPES / "scene.png")})
        return net

    return make


def published_net(prototxt: str) -> Callable[[], Net]:
    def make() -> Net:
        net = Net(MODELS / prototxt, TEST)
        randomize(net, 4)
        net.blobs["data"].reshape(1, 3, 224, 320)
        return with_noise(net, 5)

    return make


def with_noise(net: Net, seed: int) -> Net:
    """Pixels around 0 and what goes with them."""
    fill_inputs(net, {}, seed=seed)
    for name in net.inputs:
        if name in ("data", "input"):
            net.blobs[name].data[...] *= 50
    return net


def zoo_net(name: str, blob: str, image: str, means: tuple[float, ...], factor: float) -> Callable[[], Net]:
    def make() -> Net:
        net = Net(ZOO / f"{name}.prototxt", TEST, weights=ZOO / f"{name}.caffemodel")
        if not image:
            fill_inputs(net, {}, seed=1)
            return net
        settings = DetectionSettings(pixel_means=means)  # type: ignore[arg-type]
        fill_inputs(net, {blob: str(ZOO / image)}, settings=settings, factor=factor)
        return net

    return make


def cifar_net(name: str, weights: str) -> Callable[[], Net]:
    def make() -> Net:
        net = Net(CIFAR / f"{name}.prototxt", TEST, weights=CIFAR / weights)
        fill_inputs(net, {"data": str(ZOO / "bvlc_images" / "cat.jpg")})
        return net

    return make


def one_layer_net(prototxt: Path) -> Callable[[], Net]:
    def make() -> Net:
        weights = prototxt.with_suffix(".caffemodel")
        net = Net(prototxt, TEST, weights=weights if weights.exists() else None)
        return with_noise(net, 5)

    return make


def random_net(prototxt: Path, spread: float) -> Callable[[], Net]:
    def make() -> Net:
        net = Net(prototxt, TEST)
        randomize(net, 4)
        fill_inputs(net, {}, seed=5)
        net.blobs["data"].data[...] *= spread
        return net

    return make


def nets() -> Iterator[tuple[str, Callable[[], Net]]]:
    yield "shapes R-FCN", shapes_net("rfcn")
    yield "shapes Faster R-CNN", shapes_net("faster_rcnn")
    if not MODELS.is_dir():
        return
    for name, *rest in ZOO_NETS:
        yield Path(name).name, zoo_net(name, *rest)
    yield "cifar10_quick", cifar_net("cifar10_quick", "cifar10_quick_iter_4000.caffemodel")
    yield "cifar10_full", cifar_net("cifar10_full", "cifar10_full_iter_60000.caffemodel.h5")
    for prototxt in sorted((ZOO / "opencv_dnn_layers").glob("layer_*.prototxt")):
        yield prototxt.stem, one_layer_net(prototxt)
    yield "CaffeNet", random_net(ZOO / "bvlc_images" / "deploy.prototxt", 50)
    yield "LeNet", random_net(ZOO / "bvlc_images" / "lenet.prototxt", 0.1)
    for name, prototxt in PUBLISHED.items():
        yield name, published_net(prototxt)


def whole_detectors() -> Iterator[tuple[str, Callable[[], Net], Path, Whole]]:
    """Detectors, a photo for each, and what is before and behind the net."""
    scene, both = SHAPES / "scene.png", Whole(threshold=0.05)
    yield "shapes R-FCN", shapes_net("rfcn"), scene, both
    yield "shapes Faster R-CNN", shapes_net("faster_rcnn"), scene, both
    if not MODELS.is_dir():
        return
    for name, blob, image, means, factor in ZOO_NETS[:2]:
        yield (
            Path(name).name,
            zoo_net(name, blob, image, means, factor),
            ZOO / image,
            replace(both, means=means, scale_factor=factor),
        )
    demo = ZOO / "pyfaster_demo" / "004545.jpg"
    yield "ZF, Faster R-CNN", published_net(PUBLISHED["ZF, Faster R-CNN"]), demo, replace(both, threshold=0.049)


def run_whole(name: str, make: Callable[[], Net], photo: Path, whole: Whole, folder: Path) -> bool:
    """Print a line; whether the model finds what detect finds, with the photo as its input and without."""
    net, model, agree = make(), folder / "model.onnx", True
    for each in (whole, replace(whole, photo=False)):
        export_onnx(net, model, whole=each)
        found = compare_with_detect(net, model, load_image(photo), each)
        largest = max(one.relative for one in found)
        taken = "photo" if each.photo else "data"
        print(
            f"{name}, {taken} to boxes: {found[1].shape[0]} detections, relative {largest:.2e} {found[0].note}".rstrip(),
            flush=True,
        )
        agree &= all(one.agrees for one in found) and found[1].shape[0] > 0
    return agree


def other_size(net: Net, dims: dict[str, list[int | str]]) -> bool:
    """Give the image another size where the model has names for its height and width; whether it has."""
    for name, shape in dims.items():
        if len(shape) == 4 and all(isinstance(d, str) for d in shape[2:]):
            height, width = net.blobs[name].shape[2:]
            net.blobs[name].reshape(net.blobs[name].shape[0], shape[1], height + 33, width - 26 if width > 100 else width + 7)
            with_noise(net, 6)
            return True
    return False


def input_dims(model: Path) -> dict[str, list[int | str]]:
    import onnx

    inputs = onnx.load(model, load_external_data=False).graph.input
    return {x.name: [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] for x in inputs}


def run(name: str, make: Callable[[], Net], folder: Path, fold: bool, opset: int) -> bool:
    """Print a line for each output, at one size of image or two; whether all agree."""
    start = time.perf_counter()
    net, model = make(), folder / "model.onnx"
    export_onnx(net, model, fold=fold, opset=opset)
    print(f"{name}: exported in {time.perf_counter() - start:.1f} s, {model.stat().st_size / 2**20:.1f} MiB", flush=True)
    agree = compared(net, model)
    if other_size(net, input_dims(model)):
        agree &= compared(net, model)
    return agree


def compared(net: Net, model: Path) -> bool:
    """Print a line for each output; whether all agree."""
    size = "x".join(map(str, net.blobs[net.inputs[0]].shape))
    found = compare_with_net(net, model)
    for one in found:
        shape = "x".join(map(str, one.shape))
        print(f"  {size}  {one.name} {shape}: {one.largest:.2e}, relative {one.relative:.2e} {one.note}".rstrip(), flush=True)
    return all(one.agrees for one in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only nets whose name holds this text")
    parser.add_argument("--fold", action="store_true", help="fold BatchNorm and Scale into convolutions")
    parser.add_argument("--opset", type=int, default=DEFAULT_OPSET)
    arguments = parser.parse_args()
    failed = count = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, make in nets():
            if arguments.match in name:
                count += 1
                failed += not run(name, make, Path(folder), arguments.fold, arguments.opset)
        for name, make, photo, whole in whole_detectors():
            if arguments.match in name:
                count += 1
                failed += not run_whole(name, make, photo, whole, Path(folder))
    print(f"exported models: {count - failed} of {count} agree to 1e-4")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
