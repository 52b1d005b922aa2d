"""Prototxts of well-known nets, written from their architectures' numbers.

VGG16 (arXiv:1409.1556), ResNet-50 (1512.03385), MobileNet v1 (1704.04861), MobileNet-SSD (SSD, 1512.02325, on MobileNet's
layers with folded BatchNorm), ShuffleNet 1x with 3 groups (1707.01083), DenseNet-121 (1608.06993), SqueezeNet 1.0
(1602.07360), SegNet (1511.00561). Layers are named as in the published prototxts where these say which layer is which.
"""

from __future__ import annotations

VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)
"""Output channels of VGG16's convolutions; 0: max pooling."""
RESNET = ((3, 64, 1, 1), (4, 128, 2, 1), (6, 256, 2, 1), (3, 512, 2, 1))
"""Of ResNet-50's stages: blocks, channels within, stride, dilation."""
RFCN = (*RESNET[:3], (3, 512, 1, 2))
"""Those of R-FCN, whose last stage keeps its map's size."""
MOBILENET = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
"""Of MobileNet v1's pairs of a depthwise and a 1x1 convolution: channels out, stride."""
SSD = (("11", 60, 0), ("13", 105, 150), ("14_2", 150, 195), ("15_2", 195, 240), ("16_2", 240, 285), ("17_2", 285, 300))
"""Of MobileNet-SSD's maps that are searched: the convolution that makes it, min_size and max_size (0: none) of its boxes."""
SHUFFLENET = ((240, 4), (480, 8), (960, 4))
"""Of ShuffleNet's stages: channels, units."""
DENSENET = (6, 12, 24, 16)
"""Layers of DenseNet-121's blocks."""
SQUEEZENET = ((16, 64), (16, 64), (32, 128), 0, (32, 128), (48, 192), (48, 192), (64, 256), 0, (64, 256))
"""Of SqueezeNet's fire modules: channels squeezed, expanded; 0: max pooling."""
SEGNET = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Output channels of SegNet's encoder, between poolings; the decoder mirrors them."""


class Prototxt:
    """A prototxt that grows by a layer a call. at: the blob that the next layer reads, unless it is told another."""

    def __init__(self, name: str, channels: int = 3, height: int = 8, width: int = 8) -> None:
        """Begin with the net's name and its input, one image."""
        self.at, self.text = "", f'name: "{name}"\n'
        shape = f"dim: 1 dim: {channels} dim: {height} dim: {width}"
        self.add("Input", "data", f"input_param {{ shape {{ {shape} }} }}", bottoms=[])

    def __str__(self) -> str:
        return self.text

    def add(
        self, kind: str, name: str, param: str = "", *, bottoms: list[str] | None = None, tops: list[str] | None = None
    ) -> str:
        """Any layer; its first top, by default of its name, is what the next one reads. Returns this top."""
        read = "".join(f' bottom: "{blob}"' for blob in ([self.at] if bottoms is None else bottoms))
        made = "".join(f' top: "{blob}"' for blob in (tops or [name]))
        self.text += f'layer {{ name: "{name}" type: "{kind}"{read}{made} {param} }}\n'
        self.at = (tops or [name])[0]
        return self.at

    def in_place(self, kind: str, name: str, param: str = "") -> None:
        self.add(kind, name, param, tops=[self.at])

    def convolution(self, name: str, outputs: int, kernel: int, *, bottom: str = "", bias: bool = True,
                    kind: str = "Convolution", **numbers: int) -> str:  # fmt: skip
        """numbers: stride, dilation, group; pad, by default so that stride 1 keeps the map's size."""
        numbers = {"pad": kernel // 2 * numbers.get("dilation", 1), **numbers}
        param = " ".join(f"{field}: {number}" for field, number in numbers.items())
        param = f"num_output: {outputs} kernel_size: {kernel} {param} bias_term: {str(bias).lower()}"
        return self.add(kind, name, f"convolution_param {{ {param} }}", bottoms=[bottom or self.at])

    def pool(self, name: str, kernel: int, *, method: str = "MAX", more: str = "", mask: str = "") -> str:
        """Pooling with stride 2; mask: the name of a top with the places of the maxima."""
        param = f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: 2 {more} }}"
        return self.add("Pooling", name, param, tops=[name, mask] if mask else None)

    def relu(self) -> None:
        self.in_place("ReLU", f"{self.at}/relu")

    def normalised(self, relu: bool = True) -> None:
        """BatchNorm, Scale and ReLU, in place."""
        blob = self.at
        self.in_place("BatchNorm", f"{blob}/bn", "batch_norm_param { use_global_stats: true }")
        self.in_place("Scale", f"{blob}/scale", "scale_param { bias_term: true }")
        if relu:
            self.relu()

    def classified(self, name: str) -> None:
        """Add the mean of the map, a 1x1 convolution for 1000 classes, and probabilities."""
        self.add("Pooling", "pool", "pooling_param { pool: AVE global_pooling: true }")
        self.convolution(name, 1000, 1)
        self.add("Softmax", "prob")


def one_convolution(channels: int, outputs: int, height: int, width: int, kernel: int, **more: int) -> str:
    net = Prototxt("one", channels, height, width)
    net.convolution("y", outputs, kernel, bottom="data", **more)
    return str(net)


def vgg16(*, whole: bool = False) -> str:
    """data to conv5_3, or to fc8."""
    net = Prototxt("VGG16", 3, *([224] * 2 if whole else [8] * 2))
    for i, outputs in enumerate(VGG):
        if outputs:
            net.convolution(f"l{i}", outputs, 3)
            net.relu()
        else:
            net.pool(f"l{i}", 2)
    if whole:
        net.pool("pool5", 2)
        for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
            net.add("InnerProduct", name, f"inner_product_param {{ num_output: {outputs} }}")
            if name != "fc8":
                net.relu()
    return str(net)


def resnet50(size: int = 224, *, rfcn: bool = False) -> str:
    """data to the probabilities, or to R-FCN's res5c; BatchNorm and Scale in place."""
    net = Prototxt("ResNet-50", 3, size, size)
    net.convolution("conv1", 64, 7, stride=2, bias=False)
    net.normalised()
    at = net.pool("pool1", 3)
    for stage, (blocks, width, stride, dilation) in enumerate(RFCN if rfcn else RESNET, 2):
        for block in range(blocks):
            name, first = f"res{stage}{'abcdef'[block]}", stride if block == 0 else 1
            beside = at
            if block == 0:
                beside = net.convolution(f"{name}_1", 4 * width, 1, stride=first, bias=False)
                net.normalised(relu=False)
            net.convolution(f"{name}_2a", width, 1, stride=first, bias=False, bottom=at)
            net.normalised()
            net.convolution(f"{name}_2b", width, 3, dilation=dilation, bias=False)
            net.normalised()
            net.convolution(f"{name}_2c", 4 * width, 1, bias=False)
            net.normalised(relu=False)
            at = net.add("Eltwise", name, bottoms=[beside, f"{name}_2c"])
            net.relu()
    if not rfcn:
        net.classified("fc1000")
    return str(net)


def mobilenet(size: int = 224) -> str:
    """MobileNet v1: depthwise 3x3 and 1x1 convolutions with BatchNorm and Scale, to the probabilities."""
    net = Prototxt("MobileNet", 3, size, size)
    _mobilenet_layers(net, folded=False)
    net.classified("fc7")
    return str(net)


def mobilenet_ssd(size: int = 300) -> str:
    """MobileNet-SSD for 20 classes, BatchNorm and Scale folded, to the detections."""
    net = Prototxt("MobileNet-SSD", 3, size, size)
    _mobilenet_layers(net, folded=True)
    for i, outputs in ((14, 512), (15, 256), (16, 256), (17, 128)):
        for name, channels, kernel, stride in ((f"conv{i}_1", outputs // 2, 1, 1), (f"conv{i}_2", outputs, 3, 2)):
            net.convolution(name, channels, kernel, stride=stride)
            net.relu()
    variances = " ".join(f"variance: {number}" for number in (0.1, 0.1, 0.2, 0.2))
    found: dict[str, list[str]] = {"loc": [], "conf": [], "priorbox": []}
    for layer, least, most in SSD:
        each = 6 if most else 3  # boxes a pixel
        for kind, channels in (("loc", 4 * each), ("conf", 21 * each)):
            name = net.convolution(f"conv{layer}_mbox_{kind}", channels, 1, bottom=f"conv{layer}")
            net.add("Permute", f"{name}_perm", "permute_param { order: 0 order: 2 order: 3 order: 1 }")
            found[kind].append(net.add("Flatten", f"{name}_flat", "flatten_param { axis: 1 }"))
        sides = f"min_size: {least} max_size: {most} aspect_ratio: 3" if most else f"min_size: {least}"
        param = f"prior_box_param {{ {sides} aspect_ratio: 2 flip: true clip: false {variances} offset: 0.5 }}"
        found["priorbox"].append(net.add("PriorBox", f"conv{layer}_mbox_priorbox", param, bottoms=[f"conv{layer}", "data"]))
    for kind, blobs in found.items():
        net.add("Concat", f"mbox_{kind}", f"concat_param {{ axis: {2 if kind == 'priorbox' else 1} }}", bottoms=blobs)
    net.add("Reshape", "mbox_conf_reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 21 } }", bottoms=["mbox_conf"])
    net.add("Softmax", "mbox_conf_softmax", "softmax_param { axis: 2 }")
    net.add("Flatten", "mbox_conf_flatten", "flatten_param { axis: 1 }")
    param = "num_classes: 21 share_location: true background_label_id: 0 nms_param { nms_threshold: 0.45 top_k: 100 }"
    param = f"detection_output_param {{ {param} code_type: CENTER_SIZE keep_top_k: 100 confidence_threshold: 0.25 }}"
    net.add("DetectionOutput", "detection_out", param, bottoms=["mbox_loc", "mbox_conf_flatten", "mbox_priorbox"])
    return str(net)


def _mobilenet_layers(net: Prototxt, *, folded: bool) -> None:
    """conv0 to conv13."""
    finish = net.relu if folded else net.normalised
    channels = 32
    net.convolution("conv0", channels, 3, stride=2, bias=folded)
    finish()
    for i, (outputs, stride) in enumerate(MOBILENET, 1):
        net.convolution(f"conv{i}/dw", channels, 3, stride=stride, group=channels, bias=folded)
        finish()
        net.convolution(f"conv{i}", outputs, 1, bias=folded)
        finish()
        channels = outputs


def shufflenet(size: int = 224, group: int = 3) -> str:
    """ShuffleNet 1x: 1x1 convolutions in groups, whose channels are shuffled before a depthwise 3x3 one; to fc1000."""
    net = Prototxt("ShuffleNet", 3, size, size)
    net.convolution("conv1", 24, 3, stride=2, bias=False)
    net.normalised()
    net.pool("pool1", 3)
    channels, unit = 24, 0
    for outputs, units in SHUFFLENET:
        for i in range(units):
            unit, first, at = unit + 1, i == 0, net.at
            name, more = f"resx{unit}", outputs - channels if first else outputs
            beside = net.pool(f"{name}_match_conv", 3, method="AVE") if first else at
            net.convolution(f"{name}_conv1", more // 4, 1, bottom=at, group=1 if unit == 1 else group, bias=False)
            net.normalised()
            if unit > 1:
                net.add("ShuffleChannel", f"shuffle{unit}", f"shuffle_channel_param {{ group: {group} }}")
            net.convolution(f"{name}_conv2", more // 4, 3, stride=2 if first else 1, bias=False, kind="ConvolutionDepthwise")
            net.normalised(relu=False)
            net.convolution(f"{name}_conv3", more, 1, group=group, bias=False)
            net.normalised(relu=False)
            net.add("Concat" if first else "Eltwise", f"{name}_joined", bottoms=[beside, f"{name}_conv3"])
            net.relu()
            channels = outputs
    net.add("Pooling", "pool_ave", "pooling_param { pool: AVE global_pooling: true }")
    net.convolution("fc1000", 1000, 1)
    return str(net)


def densenet121(size: int = 224, growth: int = 32) -> str:
    """BatchNorm, Scale and ReLU come before each convolution, and read what others read, too; to fc6."""
    net = Prototxt("DenseNet-121", 3, size, size)

    def normalised(name: str) -> None:
        net.add("BatchNorm", f"{name}/bn", "batch_norm_param { eps: 1e-5 }")
        net.in_place("Scale", f"{name}/scale", "scale_param { bias_term: true }")
        net.in_place("ReLU", f"{name}/relu")

    net.convolution("conv1", 64, 7, stride=2, bias=False)
    normalised("conv1")
    net.pool("pool1", 3, more="pad: 1 ceil_mode: false")
    channels = 64
    for block, layers in enumerate(DENSENET, 2):
        for layer in range(1, layers + 1):
            at, name = net.at, f"conv{block}_{layer}"
            normalised(f"{name}/x1")
            net.convolution(f"{name}/x1", 4 * growth, 1, bias=False)
            normalised(f"{name}/x2")
            net.convolution(f"{name}/x2", growth, 3, bias=False)
            net.add("Concat", f"concat_{block}_{layer}", bottoms=[at, f"{name}/x2"])
            channels += growth
        normalised(f"conv{block}_blk")
        if block <= len(DENSENET):
            channels //= 2
            net.convolution(f"conv{block}_blk", channels, 1, bias=False)
            net.pool(f"pool{block}", 2, method="AVE")
    net.add("Pooling", "pool5", "pooling_param { pool: AVE global_pooling: true }")
    net.convolution("fc6", 1000, 1)
    return str(net)


def squeezenet(size: int = 227) -> str:
    """SqueezeNet 1.0, to the probabilities."""
    net = Prototxt("SqueezeNet", 3, size, size)
    net.convolution("conv1", 96, 7, stride=2, pad=0)
    net.relu()
    net.pool("pool1", 3)
    for i, fire in enumerate(SQUEEZENET):
        if isinstance(fire, int):
            net.pool(f"pool{i}", 3)
            continue
        squeezed = net.convolution(f"fire{i}/squeeze1x1", fire[0], 1)
        net.relu()
        for kernel in (1, 3):
            net.convolution(f"fire{i}/expand{kernel}x{kernel}", fire[1], kernel, bottom=squeezed)
            net.relu()
        net.add("Concat", f"fire{i}/concat", bottoms=[f"fire{i}/expand1x1", f"fire{i}/expand3x3"])
    net.in_place("Dropout", "drop9", "dropout_param { dropout_ratio: 0.5 }")
    net.convolution("conv10", 1000, 1, pad=1)
    net.relu()
    net.add("Pooling", "pool10", "pooling_param { pool: AVE global_pooling: true }")
    net.add("Softmax", "prob")
    return str(net)


def segnet(height: int = 360, width: int = 480, classes: int = 11) -> str:
    """VGG16's convolutions with BN, and a decoder that puts numbers where the encoder's maxima were; to the probabilities."""
    net, sizes = Prototxt("SegNet", 3, height, width), [(height, width)]

    def convolutions(stage: int, outputs: tuple[int, ...], end: str) -> None:
        for i, channels in enumerate(outputs, 1):
            name = net.convolution(f"conv{stage}_{i}{end}", channels, 3)
            net.in_place("BN", f"{name}_bn", "bn_param { bn_mode: INFERENCE }")
            net.relu()

    for stage, outputs in enumerate(SEGNET, 1):
        convolutions(stage, outputs, "")
        net.pool(f"pool{stage}", 2, mask=f"pool{stage}_mask")
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    for stage in range(len(SEGNET), 0, -1):
        rows, columns = sizes[stage - 1]
        param = f"upsample_param {{ upsample_h: {rows} upsample_w: {columns} }}"
        net.add("Upsample", f"upsample{stage}", param, bottoms=[net.at, f"pool{stage}_mask"])
        below = (SEGNET[stage - 2][-1],) if stage > 1 else ()
        convolutions(stage, SEGNET[stage - 1][:-1] + below, "_D")
    net.convolution("classes", classes, 3)
    net.add("Softmax", "prob")
    return str(net)
