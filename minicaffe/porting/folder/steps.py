"""The commands to go on with. Each runs as it is printed, in the working directory of the report."""

from __future__ import annotations

import os
import re
import string
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from minicaffe.detection.family import numbers_text
from minicaffe.detection.inputs import image_inputs
from minicaffe.detection.mtcnn import Mtcnn, following
from minicaffe.detection.task import Task
from minicaffe.errors import Error, install, pasted
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.data.input import Input
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.net_arguments import state_applied
from minicaffe.porting.cut import has_head
from minicaffe.porting.deploy import deploy
from minicaffe.porting.retarget import retarget
from minicaffe.registry import exports

from .matching import Runnable
from .own_anchors import reads_anchors
from .preparation import nearest, preparations
from .scan import IMAGE, NAMES, NET, SETTINGS, SOLVER, STATE, WEIGHTS, Item, reading, reason

if TYPE_CHECKING:
    from .report import Report

EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "export": {"onnx": ("onnx", "onnxruntime")},
    "to-torch": {"torch": ("torch",), "safetensors": ("safetensors",)},
}
"""Of commands the extras that they need, with their packages."""
MOST_DEPLOYED = 3
"""Training nets for which the deploy net is proposed, at most."""
MTCNN_INPUT = f" --rgb --axes wh --mean {numbers_text(Mtcnn.means)} --scale-factor {Mtcnn.scale_factor:g}"
"""The options that feed a net of an MTCNN."""
CLASSES = 4
"""The number of classes of the example of `retarget`."""
SCENE = Path(__file__).resolve().parents[3] / "examples" / "shapes" / "scene.png"
"""An image of the clone that minicaffe runs from."""


@dataclass(frozen=True)
class Step:
    """A command to go on with, and what it is for. of_net: False for one that serves several nets."""

    why: str
    command: str
    of_net: bool = True


@dataclass
class _Steps:
    """The steps of a report. single: whether it is about one net; extras: whose installation has been proposed."""

    report: Report
    single: bool
    extras: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)

    def installs(self, command: str) -> Iterator[Step]:
        """Yield the installation of the extras that a command needs and that are not there, once."""
        extras = {extra: packages for extra, packages in EXTRAS[command].items() if not all(map(find_spec, packages))}
        if lacking := [extra for extra in extras if extra not in self.extras]:
            self.extras.update(lacking)
            yield Step(f"first, what `minicaffe {command}` needs", install(",".join(lacking)), of_net=False)

    def output(self, stem: str, *suffixes: str, of: Runnable | None = None) -> list[str]:
        """Return names of files to write that are none of the folder's and none of another step's."""
        if of and not self.single:
            stem = f"{re.sub(r'[^A-Za-z0-9]+', '_', Path((of.weights or of.net).path).stem)}_{stem}"
            stem = f"_{stem}" if stem[0].isdigit() else stem  # a module's name is an identifier
        taken = {(self.report.folder / item.path).resolve() for item in self.report.items}
        for number in count(1):
            name = stem if number == 1 else f"{stem}_{number}"
            names = [f"{name}{suffix}" for suffix in suffixes]
            if not any(Path(one).resolve() in taken or one in self.written for one in names):
                self.written.update(names)
                return names
        raise AssertionError("count() ends")

    def of_net(self, one: Runnable) -> Iterator[Step]:
        """Yield the commands for a net."""
        words = _Words(self.report, one)
        if one.stage == 1 and one.weights and not lacking_nets(self.report, one):
            yield Step("find faces", f"minicaffe detect {words.files} {words.photo} --draw {self.output('out', '', of=one)[0]}")
        elif one.stage < 2:  # MTCNN's other nets take the pixels of boxes
            yield self.result(words, one)
        yield from self.to_onnx(one, words)
        if _has_torch_form(one.made):
            yield from self.installs("to-torch")
            (out,) = self.output("model", ".py", of=one)
            names = words.classes if one.task.command in ("detect", "segment") else ""
            why = f"to PyTorch source{', checked' * bool(words.check)}"
            yield Step(why, f"minicaffe to-torch {words.files}{words.cfg}{names} -o {out}{words.check}")
        if has_head(one.made) and "trunk.prototxt" not in self.written:  # the rest of another net would have the same name
            out = " ".join(self.output("trunk", ".prototxt", ".caffemodel"))
            yield Step("without its head, for a chip", f"minicaffe cut {words.files}{words.cfg} --drop-head -o {out}")
        shown = f" --image {words.photo}{words.means}" if words.takes else ""
        classes = words.classes if one.task.command == "detect" else ""
        (out,) = self.output("trace", ".html", of=one)
        yield Step("see what every layer does", f"minicaffe trace {words.files}{shown}{words.cfg}{classes} -o {out}")
        if _folds(one.made) and not words.anchors:  # merge-bn has no --anchors
            out_net, out_weights = self.output("merged", ".prototxt", ".caffemodel", of=one)
            out = f"-o {out_net} {out_weights} --check"
            yield Step("fold BatchNorm into the convolutions", f"minicaffe merge-bn {words.files} {out}")
        if one.task.command == "detect" and _retargets(self.report.folder / one.net.path):
            (out,) = self.output("other", ".prototxt", of=one)
            why = f"other classes, here {CLASSES - 1} and the background"
            yield Step(why, f"minicaffe retarget {words.net} --classes {CLASSES} --out {out}")

    def result(self, words: _Words, one: Runnable) -> Step:
        return words.result(lambda suffix, stem="out": self.output(stem, suffix, of=one)[0])

    def to_onnx(self, one: Runnable, words: _Words) -> Iterator[Step]:
        if any(not isinstance(layer, Input | Split) and exports.get(type(layer)) is None for layer in one.made.layers):
            return
        yield from self.installs("export")
        (out,) = self.output("model", ".onnx", of=one)
        if one.weights and words.is_whole:
            check = f" --check --input {pasted(f'data={words.image}')}" * words.has_image
            ends = f"--with-image --with-boxes{check}"
            names = f"{words.cfg}{words.means}{words.classes}"
            checked = ", checked" * words.has_image  # on an image without objects there is nothing to compare
            why = f"to ONNX, from the photo to boxes{checked}; docs/porting.md, The whole detector, has the code that runs it"
            yield Step(why, f"minicaffe export {words.files} -o {out} {ends}{names}")
        else:
            names = words.classes if one.task.command in ("detect", "segment") else ""
            why = f"to ONNX{', checked' * bool(words.check)}"
            yield Step(why, f"minicaffe export {words.files} -o {out}{words.check}{words.cfg}{names}")


class _Words:
    """The words of a net's commands. files: the net, its weights and the options that it needs to load."""

    def __init__(self, report: Report, one: Runnable) -> None:
        made, task, settings = one.made, one.task, nearest(report.of(SETTINGS), one.net)
        self.task, self.made = task, made
        self.net = report.path(one.net)
        weights = report.path(one.weights) if one.weights else "--random-weights"
        self.files = f"{self.net} {weights}{_fork(report)}" + " --skip-unknown" * bool(made.skipped)
        images = [str(report.folder / item.path) for item in report.of(IMAGE)]
        self.has_image = bool(images)
        images = images or [example_image()]
        self.image, self.second = images[0], images[min(1, len(images) - 1)]
        self.photo = pasted(self.image, path=True)
        self.takes = next(iter(image_inputs(made)), "")
        has_settings = one.family is not None and not one.family.has_fixed_size
        self.check = "" if one.weights is None and _is_chaotic(made) else " --check"
        self.cfg = f" --cfg {report.path(settings[0])}" if len(settings) == 1 and has_settings else ""
        own = report.anchors.get(one.net.path)
        self.anchors = f" --anchors {_shown(report, own.file)}" if own and own.numbers and reads_anchors(made, own) else ""
        self.cfg += self.anchors
        self.means = MTCNN_INPUT if one.stage else means_of(report, one)
        names = names_of(report, task)
        option = {"read": "--alphabet-file"}.get(task.command, "--classes")
        self.classes = f" {option} {report.path(names)}" if names else ""

    @property
    def is_whole(self) -> bool:
        """True for a detector that `export --with-image --with-boxes` writes."""
        from minicaffe.porting.onnx import Whole

        with suppress(Error):
            Whole().check(self.made, None)
            return self.task.command == "detect"
        return False

    def result(self, out: Callable[..., str]) -> Step:
        """Return the command that gives the net's results. out: names what is written."""
        means = self.means
        if self.task.command == "detect":
            what = "faces" if self.task.classes and "face" in (self.task.classes.names or ()) else "objects"
            return Step(
                f"find {what}", f"minicaffe detect {self.files} {self.photo}{self.cfg}{means}{self.classes} --draw {out('')}"
            )
        if self.task.command == "classify":
            return Step("the best classes of an image", f"minicaffe classify {self.files} {self.photo}{means}{self.classes}")
        if self.task.command == "segment":
            rest = f"{means}{self.classes} --out {out('')}"
            what = "probability" if self.task.classes and self.task.classes.number == 1 else "class"
            return Step(f"the {what} of each pixel", f"minicaffe segment {self.files} {self.photo}{rest}")
        if self.task.command == "pose":
            return Step("find people", f"minicaffe pose {self.files} {self.photo}{means} --out {out('')}")
        if self.task.command == "flow":
            second = pasted(self.second, path=True)
            why = "the flow from one image to another"
            return Step(why, f"minicaffe flow {self.files} {self.photo} {second}{means} --draw {out('.png', 'flow')}")
        digits = self.task.classes is not None and self.task.classes.number in (2, len(string.digits) + 1)  # 2 classes: CTPN's
        if self.task.command == "read" and (self.classes or digits):
            return Step("read text", f"minicaffe read {self.files} {self.photo}{self.cfg}{means}{self.classes}")
        given = f" --input {pasted(f'{self.takes}={self.image}')}{means}" if self.takes else ""
        return Step("run it on an image" if self.takes else "run it", f"minicaffe run {self.files}{given}{self.anchors}")


def _shown(report: Report, file: Path) -> str:
    """Return the absolute path of a file for use in a command: relative if the folder's is."""
    with suppress(ValueError):  # another drive
        return pasted(str(file) if report.folder.is_absolute() else os.path.relpath(file), path=True)
    return pasted(str(file), path=True)


def steps_of(report: Report) -> Iterator[Step]:
    """Yield the commands to go on with."""
    steps = _Steps(report, len(report.runnable) == 1)
    for one in report.runnable:
        for step in steps.of_net(one):
            yield replace(step, why=f"{one.net.path}: {step.why}") if step.of_net and not steps.single else step
    folder = pasted(str(report.folder), path=True)
    forks = dict.fromkeys(name for problem in report.unmade.values() for name in re.findall(r"--fork ([\w-]+)", problem))
    for fork in forks:
        if not report.runnable and fork != report.fork:
            yield Step(f"the same with the layers of {fork}", f"minicaffe port {folder} --fork {fork}")
    for item in report.of(NET) if not report.runnable else ():
        if len(steps.written) < MOST_DEPLOYED and _deploys(item, report.fork):
            (out,) = steps.output("deploy", ".prototxt")
            yield Step("a net with inputs in place of data", f"minicaffe deploy {report.path(item)}{_fork(report)} -o {out}")
    fitting = {pair.weights.path for pair in report.best}
    for item in report.of(WEIGHTS):
        if item.path not in fitting and item.content.kind == ".caffemodel":
            (out,) = steps.output("rescued", ".prototxt")
            yield Step(f"a net from {item.path}", f"minicaffe rescue {report.path(item)}{_fork(report)} -o {out}")
    for item in report.of(STATE)[:1]:
        for solver in report.of(SOLVER)[:1]:
            yield Step("go on with the training", f"minicaffe train {report.path(solver)} --snapshot {report.path(item)}")


def _fork(report: Report) -> str:
    return f" --fork {pasted(report.fork)}" if report.fork else ""


def means_of(report: Report, one: Runnable) -> str:
    """Return --mean and --scale-factor of a net that takes them, if the folder is clear about them; else ""."""
    found = preparations(report.items, one.net) if one.takes_means else []
    return found[0].options if len(found) == 1 else ""


def example_image() -> str:
    """Return the image of commands for a folder without one: the clone's, or a name to put one under."""
    return str(SCENE) if SCENE.is_file() else "photo.jpg"


def lacking_nets(report: Report, one: Runnable) -> str:
    """Return which nets of an MTCNN are not where detect looks for them; "" for none, and for other nets."""
    try:
        for item in (one.net, one.weights) if one.stage == 1 else ():
            if item:
                following(report.folder / item.path)
    except Error as error:
        return str(error)
    return ""


def names_of(report: Report, task: Task) -> Item | None:
    """Return the file of names for a net's classes; a detector's may leave out the background, an alphabet the blank."""
    if task.classes is None:
        return None
    counts = {"detect": (0, 1), "read": (1,)}.get(task.command, (0,))
    wanted = [task.classes.number - lacking for lacking in counts]
    return next((item for item in report.of(NAMES) if item.content and len(item.content) in wanted), None)


def _has_torch_form(net: Net) -> bool:
    from minicaffe.porting.torch_source import source_of

    try:
        return bool(source_of(net, "model", "model.safetensors"))
    except Exception:  # a form that fails must not stop the report
        return False


def _is_chaotic(net: Net) -> bool:
    """Return True if rounding decides some outputs of the net with random weights: the order of boxes, the places of maxima."""
    return has_head(net) or any(isinstance(layer, Pooling) and len(net.top_names[layer.name]) > 1 for layer in net.layers)


def _folds(net: Net) -> bool:
    """Return True if the net has a BatchNorm with stored statistics, which a convolution can take over."""
    params = [layer.param.batch_norm_param for layer in net.layers if layer.type == "BatchNorm"]
    return any(param.use_global_stats or not param.HasField("use_global_stats") for param in params)


def _retargets(net: Path) -> bool:
    with suppress(Error):
        return bool(retarget(net, CLASSES))
    return False


def _deploys(item: Item, fork: str) -> bool:
    """Return True for a net that reads data, of which `deploy` makes one with inputs."""
    with suppress(Error), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if reading(item.content):
            return bool(Net(parse_net(_deployed(item), item.path), TEST, fork=fork))
    return False


def _deployed(item: Item) -> str:
    return deploy(item.content, state_applied(item.content.param, TEST, 0, ()).state).text


def lacking_shape(item: Item) -> str:
    """Return the option --shape that `deploy` needs for a net whose fields do not tell the size of its data; else ""."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if reading(item.content):
                _deployed(item)
    except Error as error:
        if found := re.search(r"give --shape (\S+)", reason(error)):
            return f"--shape {pasted(found[1])}"
    return ""
