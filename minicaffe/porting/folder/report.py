"""The report on a folder: its contents, what is missing and what to do next, as text or as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path

from minicaffe.detection.family import Classes, numbers_text
from minicaffe.detection.inputs import image_inputs
from minicaffe.detection.mtcnn import Mtcnn, following
from minicaffe.errors import Error, on_one_line, pasted, shortened
from minicaffe.formats.forks import grouped
from minicaffe.porting.cut import has_head

from .matching import Pair, pairs_of
from .scan import IMAGE, LINK, NAMES, NET, ORDER, SETTINGS, SHOWN, SOLVER, STATE, WEIGHTS, Item, scan

NEXT = "What to do next"
FED = f" --rgb --axes wh --mean {numbers_text(Mtcnn.means)} --scale-factor {Mtcnn.scale_factor:g}"
"""The image of a single net of an MTCNN."""
LONGEST_ROW = 1000
"""Characters of a row."""


@dataclass(frozen=True)
class Step:
    """A command to continue with, and its purpose."""

    why: str
    command: str


@dataclass(frozen=True)
class Verdict:
    """One trial of a pair. good: whether it worked, None if it was not tried; says: the result, or the reason."""

    pair: Pair
    what: str
    good: bool | None
    says: str

    @property
    def word(self) -> str:
        return {True: "works", False: "FAILS", None: "not tried"}[self.good]


@dataclass
class Report:
    """The report on a folder.

    items: the files; pairs: weights and the nets that they may be for, the best first; facts: what the folder tells about the
    preprocessing; missing: what it lacks; left_out: what was not read; verdicts: of what was tried.
    """

    folder: Path
    items: list[Item]
    left_out: list[str]
    pairs: list[Pair] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    def of(self, kind: str) -> list[Item]:
        """Return the usable files of a kind."""
        return [item for item in self.items if item.kind == kind and not item.problem]

    @property
    def best(self) -> list[Pair]:
        """For each file of weights that fits a net, the pair to continue with."""
        found: dict[str, Pair] = {}
        for pair in self.pairs:
            if pair.fits:
                found.setdefault(pair.weights.path, pair)
        return list(found.values())

    def path(self, item: Item) -> str:
        """Return a file's name for use in a command."""
        return pasted(str(self.folder / item.path), path=True)


def look(folder: str | PathLike[str], *, fork: str = "") -> Report:
    """Look through a folder. Raises Error if it is no folder.

    fork: its version is used for layers that differ between forks.
    """
    report = Report(Path(folder), *scan(Path(folder)))
    settings = report.of(SETTINGS)
    report.pairs = pairs_of(report.of(NET), report.of(WEIGHTS), settings[0].content if len(settings) == 1 else None, fork)
    report.facts = list(dict.fromkeys(fact for item in report.items for fact in item.facts))
    report.missing = list(_missing(report))
    report.steps = [*_steps(report)]
    return report


def _missing(report: Report) -> Iterator[str]:
    fitting, nets = {pair.weights.path for pair in report.best}, report.of(NET)
    if not nets and not report.of(WEIGHTS):
        yield "neither a prototxt nor weights: is it another folder?"
    for item in report.of(WEIGHTS):
        if item.path not in fitting:
            near = next((pair for pair in report.pairs if pair.weights.path == item.path), None)
            yield f"a net for {item.path}" + (f": with {near.net.path}, {near.says}" if near else "")
    if nets and not report.of(WEIGHTS):
        yield "weights: no .caffemodel or .caffemodel.h5 is here, and the nets would start from random numbers"
    names = {Path(item.path).name for item in report.items}
    for item in report.of(SOLVER):
        for file in filter(None, (item.content.net, item.content.train_net, *item.content.test_net)):
            if Path(file).name not in names:
                yield f"{file}, the net of {item.path}"
    for fact in report.facts:
        file = fact.removeprefix("mean file ").partition(" (")[0]
        if fact.startswith("mean file ") and Path(file).name not in names:
            yield f"{file}, the mean file of {fact.partition(' (')[2].rstrip(')')}"
    if any(pair.takes_means for pair in report.best) and not any(fact.startswith("mean ") for fact in report.facts):
        yield "the mean and the scale of the images: nothing here tells them"
    for pair in report.best:
        classes = _classes(pair)
        if classes and not classes.names and not _names(report, classes.number):
            yield f"the names of the {classes.number} classes of {pair.net.path}"
        if problem := _others(report, pair):
            yield problem


def _classes(pair: Pair) -> Classes | None:
    return pair.family.classes(pair.made) if pair.family and pair.made else None


def _others(report: Report, pair: Pair) -> str:
    """Return which nets of an MTCNN are not where detect looks for them; "" for none, and for other nets."""
    try:
        for item in (pair.net, pair.weights) if pair.stage == 1 else ():
            following(report.folder / item.path)
    except Error as error:
        return str(error)
    return ""


def _names(report: Report, count: int) -> Item | None:
    """Return the file with this number of class names, with or without the background."""
    fit = (item for item in report.of(NAMES) if item.content and len(item.content) in (count, count - 1))
    return next(fit, None)


def _steps(report: Report) -> Iterator[Step]:
    images = report.of(IMAGE)
    photo = report.path(images[0]) if images else "photo.jpg"
    image = str(report.folder / images[0].path) if images else "photo.jpg"
    for pair in report.best:
        files = f"{report.path(pair.net)} {report.path(pair.weights)}"
        means = _means(report) if pair.takes_means else ""
        fed = FED if pair.stage else means
        by_settings = pair.family and not pair.family.has_fixed_size
        cfg = f" --cfg {report.path(report.of(SETTINGS)[0])}" if len(report.of(SETTINGS)) == 1 and by_settings else ""
        own = _classes(pair)
        names = _names(report, own.number) if own else None
        classes = f" --classes {report.path(names)}" if names else ""
        takes = next(iter(image_inputs(pair.made)), "") if pair.made else ""
        if pair.kind != "net" or (pair.stage == 1 and not _others(report, pair)):
            what = "faces" if pair.stage or (own and "face" in (own.names or ())) else "objects"
            yield Step(f"find {what}", f"minicaffe detect {files} {photo}{cfg}{means}{classes} --draw out")
        elif pair.stage < 2:  # an MTCNN's others see pixels of boxes
            given = f" --input {pasted(f'{takes}={image}')}" if takes else ""
            yield Step("run it on an image" if takes else "run it", f"minicaffe run {files}{given}{fed if takes else ''}")
        if pair.kind in ("net", "other"):
            yield Step("to ONNX, checked", f"minicaffe export {files} -o model.onnx --check")
        else:
            whole = f"-o model.onnx --with-image --with-boxes --check --input {pasted(f'data={image}')}{cfg}{means}{classes}"
            yield Step("to ONNX, from the photo to boxes, checked", f"minicaffe export {files} {whole}")
        yield Step("to PyTorch source, checked", f"minicaffe to-torch {files}{cfg} -o model.py --check")
        if pair.made and has_head(pair.made):
            yield Step(
                "without its head, for a chip", f"minicaffe cut {files}{cfg} --drop-head -o trunk.prototxt trunk.caffemodel"
            )
        shown = f" --image {photo}" if takes else ""
        settings = f"{cfg}{fed if takes else ''}{classes if pair.kind == 'detector' else ''}"
        yield Step("see what every layer does", f"minicaffe trace {files}{shown}{settings} -o trace.html")
        if _folds(pair):
            out = "-o merged.prototxt merged.caffemodel --check"
            yield Step("fold BatchNorm into the convolutions", f"minicaffe merge-bn {files} {out}")
        if pair.kind == "detector":
            yield Step("other classes", f"minicaffe retarget {report.path(pair.net)} --classes N --out other.prototxt")
    fitting = {pair.weights.path for pair in report.best}
    for item in report.of(WEIGHTS):
        if item.path not in fitting and item.content.kind == ".caffemodel":
            yield Step(f"a net from {item.path}", f"minicaffe rescue {report.path(item)} -o rescued.prototxt")
    for item in report.of(STATE)[:1]:
        for solver in report.of(SOLVER)[:1]:
            yield Step("go on with the training", f"minicaffe train {report.path(solver)} --snapshot {report.path(item)}")


def _folds(pair: Pair) -> bool:
    """Return True if the net has a BatchNorm with stored statistics, which could be folded into a convolution."""
    params = [layer.param.batch_norm_param for layer in pair.made.layers if layer.type == "BatchNorm"] if pair.made else []
    return any(param.use_global_stats or not param.HasField("use_global_stats") for param in params)


def _means(report: Report) -> str:
    """Return --mean and --scale-factor if the folder gives them without contradiction."""
    means = {fact.split()[1] for fact in report.facts if fact.startswith("mean ") and not fact.startswith("mean file")}
    scales = {fact.split()[1].rstrip(",") for fact in report.facts if fact.startswith("scale ")}
    text = ""
    if len(means) == 1:
        values = next(iter(means)).split(",")
        text += f" --mean {pasted(','.join(values * (3 if len(values) == 1 else 1)))}" if len(values) in (1, 3) else ""
    return text + (f" --scale-factor {next(iter(scales))}" if len(scales) == 1 else "")


Section = tuple[str, list[tuple[str, str]]]


def _sections(report: Report) -> Iterator[Section]:
    """Yield headings, and below each the rows of a name and a text. Both are short, whatever the files hold."""
    for head, rows in _all_sections(report):
        more = [("", f"and {len(rows) - SHOWN:,} more")] if len(rows) > SHOWN else []
        whole = on_one_line if head == NEXT else _short  # a command must not be cut, and has only the folder's names
        yield head, [(_short(name), whole(says)) for name, says in rows[:SHOWN] + more]


def _short(text: str) -> str:
    return on_one_line(shortened(text, LONGEST_ROW))


def _all_sections(report: Report) -> Iterator[Section]:
    for kind in ORDER:
        same = [item for item in report.items if item.kind == kind]
        rows = [(item.path, f"cannot be used: {item.problem}" if item.problem else item.says) for item in same]
        yield f"{kind.capitalize() if kind != LINK else 'Links'} ({len(same)})", rows
    yield "Which weights fit which net", [(pair.name, pair.says) for pair in _shown(report)]
    forks = [(pair.net.path, sentence) for pair in report.best if pair.made for sentence in grouped(pair.made.forks.items())]
    notes = [(item.path, note) for item in report.items for note in item.notes]
    yield "Whose layers, and what is computed otherwise than there", forks + notes
    yield "What the folder tells about the preprocessing", [("", fact) for fact in report.facts]
    yield "What is missing", [("", one) for one in report.missing]
    yield "What was left out", [("", one) for one in report.left_out]
    yield "Tried", [*_tried(report)]
    yield NEXT, [(step.why, step.command) for step in report.steps]


def _tried(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the verdicts, with the pair's name at its first one."""
    last = None
    for verdict in report.verdicts:
        yield "" if verdict.pair is last else verdict.pair.name, f"{verdict.what} {verdict.word}: {verdict.says}"
        last = verdict.pair


def _shown(report: Report) -> list[Pair]:
    """Return for each file of weights the pairs that fit, or else the nearest."""
    fitting = {pair.weights.path for pair in report.best}
    nearest = {pair.weights.path: pair for pair in reversed(report.pairs)}
    return [
        pair for pair in report.pairs if pair.fits or (pair.weights.path not in fitting and nearest[pair.weights.path] is pair)
    ]


def text(report: Report) -> str:
    """Return the report for a terminal."""
    lines = [f"{on_one_line(str(report.folder))}: {len(report.items)} files"]
    for head, rows in _sections(report):
        if rows:
            lines += ["", head]
            indent = " " * (6 if any(name for name, _ in rows) else 2)
            for name, says in rows:
                lines += [f"  {name}"] * bool(name) + [f"{indent}{says}"] * bool(says)
    return "\n".join(lines)


STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; }
dt { font-weight: 600; } dd { margin: 0 0 0.5rem 1.5rem; } code { font-family: ui-monospace, monospace; }
"""


def page(report: Report) -> str:
    """Return the report as a self-contained HTML page."""
    title = f"{on_one_line(str(report.folder))}: {len(report.items)} files"
    body = [f"<h1>{escape(title)}</h1>"]
    for head, rows in _sections(report):
        if not rows:
            continue
        body.append(f"<h2>{escape(head)}</h2><dl>")
        for name, says in rows:
            shown = escape(says)
            shown = f"<code>{shown}</code>" if head == NEXT else shown
            body.append((f"<dt>{escape(name)}</dt>" if name else "") + f"<dd>{shown}</dd>")
        body.append("</dl>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    start = ["<!DOCTYPE html>", '<html lang="en">', f"<head>{head}<style>{STYLE}</style></head>", "<body>"]
    return "\n".join([*start, *body, "</body></html>", ""])
