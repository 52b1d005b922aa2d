"""cut, deploy, rescue and retarget: a prototxt made of another one, or of weights."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click

from minicaffe.detection.data_inputs import is_data
from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error, LayerError, on_one_line, pasted
from minicaffe.files import replacing, unlinked
from minicaffe.formats.prototxt import NetFile, parse_net, read_net
from minicaffe.formats.skipped import skip
from minicaffe.formats.source import LayerSource, Place
from minicaffe.net import Net
from minicaffe.net_arguments import unknown_of_file
from minicaffe.porting.cut import TARGETS, Part, cut, drop_head, join_script
from minicaffe.porting.deploy import deploy
from minicaffe.porting.rescue import Rescued, rescue
from minicaffe.porting.retarget import Retargeted, retarget

from .common import NETS, WEIGHTS, check_apart, check_folder, check_target, listed, shape_text
from .groups import StateOptions, ThreadOptions, fork_option, modules_option, random_weights_option
from .image_options import SettingsOptions, ShapeOptions
from .options import argument, option, with_options
from .terminal import echo, inform, warn

Files = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class CutOptions(ShapeOptions, SettingsOptions, StateOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    out: tuple[str, str] = option(
        "-o --out", "The part to write.", required=True, nargs=2, multiple=False, metavar="PROTOTXT WEIGHTS"
    )
    starts: tuple[str, ...] = option(
        "--from", "Layer or blob where the part begins; may be repeated.  [default: the inputs]", metavar="NAME"
    )
    ends: tuple[str, ...] = option(
        "--to", "Layer or blob where the part ends; may be repeated.  [default: the outputs]", metavar="NAME"
    )
    drop_head: bool = option(
        "--drop-head", "Cut off layers that accelerators lack: proposals, ROI layers, priors, detections, Python."
    )
    target: str | None = option(
        "--target", "Report layers, fields and sizes that this tool chain does not support.", type=click.Choice(list(TARGETS))
    )
    random_weights: bool = random_weights_option()


@with_options(CutOptions)
def cut_command(options: CutOptions) -> None:
    """Extract a part of the prototxt NET with WEIGHTS as a separate net, with its inputs and only its weights.

    NAME is a layer, which belongs to the part, or a blob: its last value. If a layer and a blob have the same name, blob:NAME
    is the blob. The name of the written weights ends in .caffemodel, .h5 or .safetensors.

    --drop-head also writes the rest of the net and a script that runs both parts: rest.prototxt, rest.caffemodel, join.py.

    Example:  minicaffe cut test.prototxt net.caffemodel --to conv5_3 -o trunk.prototxt trunk.caffemodel
    """
    if options.drop_head and (options.starts or options.ends):
        raise click.UsageError("--drop-head selects the cut: leave out --from and --to")
    rest = _rest_of(options.out) if options.drop_head else None
    for file, writes in zip((*options.out, *(rest or ())), (NETS, WEIGHTS, NETS, WEIGHTS, [".py"]), strict=False):
        check_target("--out", file, [options.net, *options.weights, options.cfg], writes=writes)
    check_apart("--out", options.out[0], "--out", options.out[1])
    net = options.load(options.net, options.weights)
    options.reshape(net)
    net.reshape()
    with ExitStack() as files:  # all appear together, or none
        if rest is None:
            _write_part(files, _for_target(cut(net, options.starts, options.ends), options.target), options.out)
        else:
            first, second = drop_head(net, options.target or "")
            _write_part(files, _for_target(first, options.target), options.out)
            _write_part(files, second, rest[:2])
            script = join_script(first, second, _file_names(options.out), _file_names(rest[:2]), _beside(options.cfg, rest[2]))
            files.enter_context(replacing(rest[2])).write_text(script, encoding="utf-8")
    for file in (*options.out, *(rest or ())):
        echo(f"written: {file}")


def _for_target(part: Part, target: str | None) -> Part:
    return part.for_target(target) if target else part


def _file_names(files: Files) -> Files:
    return Path(files[0]).name, Path(files[1]).name


def _rest_of(out: Files) -> tuple[str, str, str]:
    """Return the files for the rest and the script. Raises Error if one exists, or has the name of the part's."""
    folder, suffix = Path(out[0]).parent, "".join(Path(out[1]).suffixes[-2:]) if out[1].endswith(".h5") else Path(out[1]).suffix
    if Path(out[1]).absolute().parent != folder.absolute():
        raise Error(f"--out {out[0]} {out[1]}: give both files in one folder; the rest and the script also go there")
    names = [str(folder / name) for name in ("rest.prototxt", f"rest{suffix or '.caffemodel'}", "join.py")]
    if found := [name for name in names if unlinked(name).exists()]:
        raise Error(f"{found[0]} already exists: remove it, or write the part into another folder")
    if taken := [name for name in names if Path(name).name in (Path(out[0]).name, Path(out[1]).name)]:
        raise Error(f"--out {taken[0]}: this name is for the rest of the net; give another one")
    return names[0], names[1], names[2]


def _beside(file: str | None, script: str) -> str:
    """Return a file's path relative to the script's folder; "" without a file."""
    return os.path.relpath(file, Path(script).absolute().parent) if file else ""


def _write_part(files: ExitStack, part: Part, names: Files) -> None:
    """Write a part to drafts, which get their names at the end, and print its layers, inputs and outputs."""
    net = part.net()
    part.save(*(files.enter_context(replacing(name)) for name in names))
    echo(f"{names[0]}: {len(part.param.layer)} layers, {len(part.weights)} with weights")
    echo("  inputs " + listed(f"{name} {shape_text(shape)}" for name, shape in part.inputs.items()))
    if any(choice.by_fork for choice in net.forks.values()):
        echo(f"  give --fork {pasted(part.fork)} with it, as with the whole net")
    echo("  outputs " + listed(f"{name} {shape_text(net.blobs[name].shape)}" for name in part.outputs))


@dataclass(frozen=True, kw_only=True)
class DeployOptions(ShapeOptions, StateOptions):
    net: str = argument()
    out: str | None = option("-o --out", "Prototxt to write.  [default: stdout]", metavar="FILE.prototxt")


@with_options(DeployOptions)
def deploy_command(options: DeployOptions) -> None:
    """Write the deploy prototxt of NET, a train_val.prototxt. Its databases and lists are not read.

    An input replaces each data layer. Its size is that of the layer's crop or resizing; --shape changes it. SoftmaxWithLoss
    becomes a Softmax named prob, SigmoidCrossEntropyLoss a Sigmoid. Labels, Accuracy and other losses are left out. Comments at
    the top list the changes, and the options of classify and run for the mean and the scale.

    Example:  minicaffe deploy train_val.prototxt -o deploy.prototxt
    """
    check_target("--out", options.out, [options.net], writes=NETS)
    file = read_net(options.net, warn=False)
    kept = [source for layer, source in zip(file.param.layer, file.sources, strict=True) if not is_data(layer)]
    # The written net has no data layers, so their fields do not matter.
    skip(unknown_of_file(replace(file, sources=kept), None))
    deployed = deploy(file, options.state_of(file), dict(options.shapes or ()))
    net = options.build(_placed(parse_net(deployed.text, options.out or ""), file))  # writes only a net that runs
    _write_text(deployed.text, len(deployed.param.layer), options.out)
    for kind, names in (("inputs", net.inputs), ("outputs", net.outputs)):
        inform(f"{kind}: {listed(f'{name} {shape_text(net.blobs[name].shape)}' for name in names)}")
    if deployed.options:
        inform(f"options for classify and run: {on_one_line(deployed.options)}")
    if deployed.advice:
        inform(on_one_line(deployed.advice))


def _write_text(text: str, layers: int, out: str | None) -> None:
    """Write a prototxt to the file `out`, or to stdout."""
    if out is None:
        echo(text, nl=False)
        return
    with replacing(out) as path:
        path.write_text(text, encoding="utf-8")
    inform(f"written: {out} ({layers} layers)")


def _placed(written: NetFile, original: NetFile) -> NetFile:
    """Return the net to write, whose layers have the places of their originals, because its own text is in no file yet."""
    of_name = dict(zip(((layer.name, layer.type) for layer in original.param.layer), original.sources, strict=True))
    start = LayerSource(Place(original.file, 1))
    sources = [of_name.get((layer.name, layer.type), start) for layer in written.param.layer]
    return replace(written, sources=sources)


@dataclass(frozen=True, kw_only=True)
class RescueOptions(ShapeOptions, ThreadOptions):
    weights: str = argument()
    out: str | None = option("-o --out", "Prototxt to write.  [default: stdout]", metavar="FILE.prototxt")
    check: bool = option("--check/--no-check", "Load the prototxt with the weights and run it once.", default=True)
    fork: str | None = fork_option()
    allow_module: tuple[str, ...] = modules_option()


@with_options(RescueOptions)
def rescue_command(options: RescueOptions) -> None:
    """Write a runnable prototxt from the training net in the .caffemodel WEIGHTS.

    Data layers become inputs, and losses become probabilities. Comments at the top list the changes. An input size that the
    file lacks is guessed from the weights; --shape sets it.

    Example:  minicaffe rescue net.caffemodel -o deploy.prototxt
    """
    weights, out = options.weights, options.out
    check_target("--out", out, [weights], writes=NETS)
    rescued = rescue(weights, options.fork or "", dict(options.shapes))
    _write_text(rescued.text, len(rescued.param.layer), out)
    for guess in rescued.guesses:
        warn(f"{guess} --shape BLOB=N,C,H,W sets it")
    if options.check:
        _check_rescued(rescued, weights, out or f"the net of {weights}", options.fork or "")


def _check_rescued(rescued: Rescued, weights: str, written: str, fork: str) -> None:
    """Load the written net, run it, and print its outputs. Raises Error."""
    try:
        net = Net(parse_net(rescued.text, written), fork=fork)
        report = net.copy_from(weights)
        fill_inputs(net, {})
        outputs = net.forward()
    except LayerError as error:
        raise Error(f"{error}\nhint: the net in {weights} does not run as stored; complete the prototxt by hand") from error
    if report.missing:
        warn(f"no weights found for {listed(report.missing)}")
    if report.unused:
        inform(f"weights of layers for training only: {listed(report.unused)}")
    shown = listed(f"{name} {shape_text(array.shape)}" for name, array in outputs.items())
    inform(f"it loads with {len(report.loaded)} layers' weights and runs: {shown}")


@dataclass(frozen=True, kw_only=True)
class RetargetOptions:
    net: str = argument()
    classes: int = option("--classes", "Number of classes with the background: 4 for 3 objects.", required=True)
    out: str | None = option("-o --out", "Prototxt to write.  [default: stdout]", metavar="FILE")
    report: bool = option("--report", "List the changes; without --out the prototxt is not printed.")
    boxes: str | None = option(
        "--boxes",
        "For a net of 2 classes with 8 box values: are they per class or shared?",
        type=click.Choice(["class", "agnostic"]),
    )


@with_options(RetargetOptions)
def retarget_command(options: RetargetOptions) -> None:
    """Change the number of classes of a Faster R-CNN, Fast R-CNN, R-FCN or SSD. NET is its prototxt.

    Comments and layout stay. Layers whose weights change shape get a new name (cls_score_N), so old weights load into all other
    layers. Use the same number of classes for the train and the test prototxt.

    Example:  minicaffe retarget train.prototxt --classes 4 --out train_4.prototxt --report
    """
    net, out = options.net, options.out
    if out is not None:
        check_folder("--out", os.path.dirname(out) or ".")
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        check_target("--out", out, [net], writes=NETS)
    done = retarget(net, options.classes, boxes=options.boxes or "")
    if options.report:
        _print_retargeted(done)
    if out:
        with replacing(out) as path:
            Path(path).write_bytes(done.text.encode("utf-8", "surrogateescape"))
        echo(f"written: {out} ({done.old} -> {done.new} classes)")
    elif not options.report:
        echo(done.text, nl=False)


def _print_retargeted(done: Retargeted) -> None:
    echo(f"{done.old} -> {done.new} classes, the background counted")
    for edited in done.edits:
        field = edited.field.replace("python_param.param_str", "num_classes in python_param.param_str")
        echo(f"line {edited.place.line}: {edited.layer}: {field}: {edited.old} -> {edited.new}")
    if done.agnostic:
        echo("boxes: class-agnostic (background and object, 8 values), unchanged")
    if done.renamed:
        names = ", ".join(f"{old} -> {new}" for old, new in done.renamed.items())
        echo(f"new layers, which start untrained: {names}; their tops and all other layers keep their names")
    if any(old.startswith(("bbox_pred", "rfcn_bbox")) for old in done.renamed):
        echo(
            "minicaffe train also folds the box targets' means into the renamed layers; "
            "py-faster-rcnn's train.py looks for the old name"
        )
    for note in done.notes:
        echo(f"note: {note}")
