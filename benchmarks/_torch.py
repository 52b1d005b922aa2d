"""torch and torchvision: the ROI operators, and a net's layers computed with torch's functions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torchvision
from torch.nn import functional

from minicaffe import Net
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

Tensor = torch.Tensor
Pooling = caffe_pb2.PoolingParameter


class Peers:
    """torch on one of its devices."""

    def __init__(self, device: str, rounds: int, launches: int) -> None:
        self.device, self.rounds, self.launches = device, rounds, launches
        torch.zeros(1, device=device)  # fails here if torch lacks the device
        self.allow_tf32(False)
        torch.backends.cudnn.benchmark = True
        self.versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}, cudnn.benchmark on."

    def allow_tf32(self, allowed: bool) -> None:
        """Off at first."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed

    def forget_memory(self) -> None:
        """Count memory anew."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def reserved(self) -> float:
        """Return the most gigabytes that torch took from the driver."""
        return float(torch.cuda.max_memory_reserved()) / 1e9

    def roi(self, case: Any, x: Any, rois: Any) -> RoiPeer:
        return RoiPeer(case.peer, *(torch.from_numpy(array).to(self.device) for array in (x, rois)))

    def graph(self, net: Net) -> Graph:
        return Graph(net, self.device)

    def clock(self, run: Callable[[], Any]) -> float:
        """Microseconds of one run by CUDA events, queued behind a sleep so that no launch waits for Python."""
        run()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(self.launches):
            run()
        queueing = time.perf_counter() - begin
        torch.cuda.synchronize()
        taken = []
        for _ in range(self.rounds):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(4e9 * queueing))  # cycles: twice the queueing of a GPU at 2 GHz
            first.record()
            for _ in range(self.launches):
                run()
            last.record()
            torch.cuda.synchronize()
            taken.append(1e3 * first.elapsed_time(last) / self.launches)
        return statistics.median(taken)


class RoiPeer:
    """One of torchvision's ROI operators, with the top diff that the benchmark gives ours."""

    def __init__(self, function: Callable[[Any, Tensor, Tensor], Tensor], x: Tensor, rois: Tensor) -> None:
        self.function, self.x, self.rois = function, x.requires_grad_(), rois
        self.y = function(torchvision.ops, self.x, rois)
        top = np.random.default_rng(1).standard_normal(tuple(self.y.shape), dtype=np.float32)
        self.dy = torch.from_numpy(top).to(x.device)

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.function(torchvision.ops, self.x, self.rois)

    def backward(self) -> Tensor:
        return torch.autograd.grad(self.y, self.x, self.dy, retain_graph=True)[0]

    def results(self) -> dict[str, Any]:
        return {"forward": self.forward().cpu().numpy(), "backward": self.backward().cpu().numpy()}


class Graph:
    """A net's layers run by torch, with the net's weights; priors, which no number decides, are the net's own.

    Exits for a layer type that RUNS lacks."""

    def __init__(self, net: Net, device: str) -> None:
        self.net, self.device = net, device
        self.weights = [[torch.from_numpy(b.read_data().copy()).to(device) for b in layer.blobs] for layer in net.layers]
        fixed = [top for layer in net.layers if kind(layer) == "PriorBox" for top in net.top_names[layer.name]]
        self.fixed = {top: torch.from_numpy(net.blobs[top].read_data().copy()).to(device) for top in fixed}
        unknown = sorted({kind(layer) for layer in net.layers} - set(RUNS) - {"PriorBox"})
        if unknown:
            raise SystemExit(f"{net.file}: this benchmark has no torch function for {', '.join(unknown)}")

    def run(self, given: dict[str, Tensor], learning: bool = False) -> dict[str, Tensor]:
        """Return each blob's last value, by name. Blobs in `given` are not computed. learning: keep what backward needs."""
        blobs = {name: torch.from_numpy(self.net.blobs[name].data).to(self.device) for name in self.net.inputs}
        given = self.fixed | given
        blobs |= given
        with torch.enable_grad() if learning else torch.inference_mode():
            for layer, weights in zip(self.net.layers, self.weights, strict=True):
                bottoms, tops = self.net.bottom_names[layer.name], self.net.top_names[layer.name]
                if kind(layer) == "Input" or all(top in given for top in tops):
                    continue
                results = RUNS[kind(layer)](layer, weights, *(blobs[name] for name in bottoms))
                results = results if isinstance(results, list) else [results]
                blobs |= dict(zip(tops, results))
        return blobs

    def forward(self) -> dict[str, Any]:
        """Return the outputs, in host memory."""
        blobs = self.run({})
        return {name: blobs[name].cpu().numpy() for name in self.net.outputs}

    def forward_backward(self) -> None:
        """Compute the gradients of all weights from random ones of the outputs. Wait for the device."""
        for layer, weights in zip(self.net.layers, self.weights, strict=True):
            for weight in weights if kind(layer) != "BatchNorm" else []:
                weight.requires_grad_().grad = None
        blobs = self.run({}, learning=True)
        outputs = [blobs[name] for name in self.net.outputs]
        torch.autograd.backward(outputs, [torch.randn_like(output) for output in outputs])
        if self.device == "cuda":
            torch.cuda.synchronize()

    def count(self, name: str) -> int:
        """Return the number of items in a blob of torch's run."""
        return len(self.run({})[name])

    def comparable(self) -> dict[str, Any]:
        """Blobs that must equal the net's. The rois are the net's, because nearly equal scores may swap. Blobs that depend on a
        layer that torchvision computes differently are left out."""
        given, other = {}, set()
        for layer in self.net.layers:
            tops = self.net.top_names[layer.name]
            if kind(layer) == "Proposal":
                given |= {top: torch.from_numpy(self.net.blobs[top].read_data().copy()).to(self.device) for top in tops}
            elif kind(layer) in OTHER or other & set(self.net.bottom_names[layer.name]):
                other |= set(tops)
        return {name: y.cpu().numpy() for name, y in self.run(given).items() if name not in other}


def kind(layer: Layer) -> str:
    """Return the name of the built-in layer: Proposal for the Python layer that it stands in for."""
    return type(layer).__name__


def convolution(layer: Any, weights: list[Tensor], *xs: Tensor) -> list[Tensor]:
    window, group = layer.window, layer.group
    bias = weights[1] if len(weights) > 1 else None
    return [functional.conv2d(x, weights[0], bias, window.stride, window.pad, window.dilation, group) for x in xs]


def pooling(layer: Any, weights: list[Tensor], x: Tensor) -> Any:
    param = layer.param.pooling_param
    if param.global_pooling:
        return x.amax((2, 3), keepdim=True) if param.pool == Pooling.MAX else x.mean((2, 3), keepdim=True)
    sides: list[Any] = []
    for name in ("kernel", "stride", "pad"):
        one = "kernel_size" if name == "kernel" else name
        sides.append((getattr(param, f"{name}_h") or getattr(param, one), getattr(param, f"{name}_w") or getattr(param, one)))
    ceil = not layer.floor
    if param.pool == Pooling.MAX:
        mask = len(layer.param.top) > 1
        y = functional.max_pool2d(x, *sides, ceil_mode=ceil, return_indices=mask)
        return list(y) if mask else y
    return functional.avg_pool2d(x, *sides, ceil_mode=ceil)


def batch_norm(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    mean, variance, factor = weights
    param = layer.param.batch_norm_param
    if param.HasField("use_global_stats") and not param.use_global_stats:
        return functional.batch_norm(x, None, None, training=True, eps=param.eps)
    return functional.batch_norm(x, mean / factor, variance / factor, eps=param.eps)


def scale(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    factor, *bias = (w.reshape(-1, *[1] * (x.dim() - 2)) for w in weights)
    return torch.addcmul(bias[0], x, factor) if bias else x * factor


def dropout(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    param = layer.param.dropout_param
    return x if param.scale_train else x * (1 - param.dropout_ratio)


def lrn(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    param = layer.param.lrn_param
    if param.norm_region == caffe_pb2.LRNParameter.ACROSS_CHANNELS:
        return functional.local_response_norm(x, param.local_size, param.alpha, param.beta, param.k)
    mean = functional.avg_pool2d(x * x, param.local_size, 1, param.local_size // 2)
    return x * (1 + param.alpha * mean) ** -param.beta


def eltwise(layer: Layer, weights: list[Tensor], *xs: Tensor) -> Tensor:
    param = layer.param.eltwise_param
    if param.operation != caffe_pb2.EltwiseParameter.SUM or param.coeff:
        raise SystemExit(f"{layer.name}: this benchmark has only sums without coefficients for torch")
    return sum(xs[2:], xs[0] + xs[1])


def inner_product(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    return functional.linear(x.flatten(1), weights[0], weights[1] if len(weights) > 1 else None)


def reshape(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    dims = list(layer.param.reshape_param.shape.dim)
    return x.reshape([x.shape[i] if dim == 0 else dim for i, dim in enumerate(dims)])


def unpool(layer: Any, weights: list[Tensor], x: Tensor, mask: Tensor) -> Tensor:
    """SegNet's Upsample; the places were counted in the map to make."""
    size = layer.size or (x.shape[2] * layer.scale[0], x.shape[3] * layer.scale[1])
    return functional.max_unpool2d(x, mask, 2, output_size=size)


def shuffle(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    return torch.channel_shuffle(x, layer.param.shuffle_channel_param.group)


def flatten(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    param = layer.param.flatten_param
    return x.flatten(param.axis, param.end_axis)


def permute(layer: Layer, weights: list[Tensor], x: Tensor) -> Tensor:
    return x.permute(*layer.param.permute_param.order)


def detection_output(layer: Layer, weights: list[Tensor], loc: Tensor, conf: Tensor, priors: Tensor) -> Tensor:
    """SSD's of one image whose class 0 is the background: decode, the best boxes of each class, NMS, the best of all."""
    param = layer.param.detection_output_param
    boxes, variance = priors.reshape(2, -1, 4)
    sides, centres, codes = boxes[:, 2:] - boxes[:, :2], (boxes[:, :2] + boxes[:, 2:]) / 2, loc.reshape(-1, 4) * variance
    centres, sides = codes[:, :2] * sides + centres, codes[:, 2:].exp() * sides
    boxes = torch.cat([centres - sides / 2, centres + sides / 2], 1)
    scores, at = conf.reshape(-1, param.num_classes).t()[1:].topk(param.nms_param.top_k)
    label, place = (scores > param.confidence_threshold).nonzero(as_tuple=True)
    score, boxes = scores[label, place], boxes[at[label, place]]
    kept = torchvision.ops.batched_nms(boxes, score, label, param.nms_param.nms_threshold)[: param.keep_top_k]
    first = torch.stack([torch.zeros_like(score), label + 1.0, score], 1)
    return torch.cat([first, boxes], 1)[kept][None, None]


def psroi_pool(layer: Layer, weights: list[Tensor], x: Tensor, rois: Tensor) -> Tensor:
    param = layer.param.psroi_pooling_param
    return torchvision.ops.ps_roi_pool(x, rois, param.group_size, param.spatial_scale)


def psroi_align(layer: Layer, weights: list[Tensor], x: Tensor, rois: Tensor) -> Tensor:
    param = layer.param.psroi_align_param
    return torchvision.ops.ps_roi_align(x, rois, param.group_size, param.spatial_scale, param.sample_num)


def roi_pool(layer: Layer, weights: list[Tensor], x: Tensor, rois: Tensor) -> Tensor:
    param = layer.param.roi_pooling_param
    return torchvision.ops.roi_pool(x, rois, (param.pooled_h, param.pooled_w), param.spatial_scale)


def roi_align(layer: Layer, weights: list[Tensor], x: Tensor, rois: Tensor) -> Tensor:
    param = layer.param.roi_align_param
    size = param.pooled_h, param.pooled_w
    return torchvision.ops.roi_align(x, rois, size, param.spatial_scale, param.sampling_ratio or -1, param.aligned)


@torch.no_grad()
def proposal(layer: Any, weights: list[Tensor], scores: Tensor, deltas: Tensor, info: Tensor) -> list[Tensor]:
    """Decode, clip, remove small boxes, keep the best, NMS, keep the best."""
    _, _, height, width = scores.shape
    count = len(layer.anchors)
    at = {"device": scores.device, "dtype": scores.dtype}
    down, right = torch.arange(height, **at) * layer.stride, torch.arange(width, **at) * layer.stride
    y, x = torch.meshgrid(down, right, indexing="ij")
    anchors = (torch.stack([x, y, x, y], 2)[:, :, None] + torch.as_tensor(layer.anchors, **at)).reshape(-1, 4)
    score = scores[0, count:].permute(1, 2, 0).reshape(-1)
    delta = deltas[0].reshape(count, 4, height, width).permute(2, 3, 0, 1).reshape(-1, 4)
    sides = anchors[:, 2:] - anchors[:, :2] + 1
    centres = delta[:, :2] * sides + anchors[:, :2] + sides / 2
    sizes = torch.exp(delta[:, 2:]) * sides
    boxes = torch.cat([centres - sizes / 2, centres + sizes / 2], 1)
    most = info[0, [1, 0, 1, 0]] - 1
    boxes = torch.minimum(boxes.clamp(min=0), most)
    limits = layer.limits
    large = (boxes[:, 2:] - boxes[:, :2] + 1 >= limits.min_size * info[0, 2]).all(1)
    score = torch.where(large, score, torch.full_like(score, -torch.inf))
    score, best = score.topk(min(limits.pre_nms_top_n if limits.pre_nms_top_n > 0 else len(score), len(score)))
    boxes = boxes[best]
    kept = torchvision.ops.nms(boxes, score, limits.nms_threshold)
    kept = kept[: limits.post_nms_top_n] if limits.post_nms_top_n > 0 else kept
    rois = torch.cat([boxes.new_zeros(len(kept), 1), boxes[kept]], 1)
    return [rois, score[kept][:, None]]


RUNS: dict[str, Callable[..., Any]] = {
    "Input": lambda layer, weights: [],
    "Convolution": convolution,
    "Pooling": pooling,
    "DepthwiseConvolution": convolution,
    "BatchNorm": batch_norm,
    "BN": lambda layer, weights, x: torch.addcmul(weights[1], x, weights[0]),
    "Scale": scale,
    "LRN": lrn,
    "ReLU": lambda layer, weights, x: functional.leaky_relu(x, layer.param.relu_param.negative_slope),
    "Dropout": dropout,
    "Split": lambda layer, weights, x: [x] * len(layer.param.top),
    "Silence": lambda layer, weights, *xs: [],
    "Eltwise": eltwise,
    "InnerProduct": inner_product,
    "Softmax": lambda layer, weights, x: x.softmax(layer.param.softmax_param.axis),
    "Concat": lambda layer, weights, *xs: torch.cat(xs, layer.param.concat_param.axis),
    "Reshape": reshape,
    "Flatten": flatten,
    "Permute": permute,
    "ShuffleChannel": shuffle,
    "Upsample": unpool,
    "DetectionOutput": detection_output,
    "Proposal": proposal,
    "ROIPooling": roi_pool,
    "ROIAlign": roi_align,
    "PSROIPooling": psroi_pool,
    "PSROIAlign": psroi_align,
}
"""A layer type: its tops from (layer, weights, bottoms...)."""

OTHER = ("PSROIPooling", "PSROIAlign")
"""Types that torchvision computes differently."""
