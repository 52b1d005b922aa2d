"""minicaffe deploy"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minicaffe.detection.data_inputs import is_data
from minicaffe.errors import on_one_line
from minicaffe.files import replacing
from minicaffe.formats.prototxt import NetFile, parse_net, read_net
from minicaffe.formats.skipped import skip
from minicaffe.formats.source import LayerSource, Place
from minicaffe.net_arguments import unknown_of_file
from minicaffe.porting.deploy import deploy

from .common import check_target, listed, shape_text
from .groups import StateOptions
from .image_options import ShapeOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, StateOptions):
    net: str = argument()
    out: str | None = option("-o --out", "The file to write.  [default: stdout]", metavar="FILE.prototxt")


@with_options(Options)
def command(options: Options) -> None:
    """Write the deploy prototxt of NET, a train_val.prototxt, whose databases and lists are not read.

    An input of the crop's or the resizing's size takes each data layer's place; --shape sets it. SoftmaxWithLoss becomes a
    Softmax named prob, SigmoidCrossEntropyLoss a Sigmoid. Labels, Accuracy and other losses are left out. Comments at the top
    list the changes, and the options of classify and run for the mean and the scale.

    Example:  minicaffe deploy train_val.prototxt -o deploy.prototxt
    """
    check_target("--out", options.out, [options.net])
    file = read_net(options.net, warn=False)
    kept = [source for layer, source in zip(file.param.layer, file.sources, strict=True) if not is_data(layer)]
    skip(unknown_of_file(replace(file, sources=kept), None))  # a data layer's fields mean nothing to what is written
    deployed = deploy(file, options.state_of(file), dict(options.shapes or ()))
    net = options.build(_placed(parse_net(deployed.text, options.out or ""), file))  # what does not run is not written
    if options.out:
        with replacing(options.out) as path:
            path.write_text(deployed.text, encoding="utf-8")
        echo(f"written: {options.out} ({len(deployed.param.layer)} layers)", err=True)
    else:
        echo(deployed.text, nl=False)
    for kind, names in (("inputs", net.inputs), ("outputs", net.outputs)):
        echo(f"{kind}: {listed(f'{name} {shape_text(net.blobs[name].shape)}' for name in names)}", err=True)
    if deployed.options:
        echo(f"options for classify and run: {on_one_line(deployed.options)}", err=True)


def _placed(written: NetFile, original: NetFile) -> NetFile:
    """The net to write, with the places of the layers that it is made from: its own text is in no file yet."""
    of_name = dict(zip(((layer.name, layer.type) for layer in original.param.layer), original.sources, strict=True))
    start = LayerSource(Place(original.file, 1))
    sources = [of_name.get((layer.name, layer.type), start) for layer in written.param.layer]
    return replace(written, sources=sources)
