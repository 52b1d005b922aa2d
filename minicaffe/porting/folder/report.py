"""The report on a folder: its contents, what is missing and what to do next, as text or as a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path

from minicaffe.data.settings import DetectionSettings, with_anchors
from minicaffe.detection.family import SSD_MEANS, numbers_text
from minicaffe.detection.inputs import image_inputs
from minicaffe.errors import first_of, on_one_line, pasted, shortened
from minicaffe.formats.forks import grouped

from .matching import Pair, Runnable, best_of, pairs_of, runnable
from .own_anchors import OwnAnchors, own_anchors, reads_anchors
from .preparation import nearest, preparations
from .scan import IMAGE, LINK, NET, ORDER, SETTINGS, SHOWN, SOLVER, WEIGHTS, Item, scan
from .steps import Step, example_image, lacking_nets, lacking_shape, names_of, steps_of

NEXT = "What to do next"
COMMON_MEANS = (
    f"Without --mean, detect subtracts {numbers_text(SSD_MEANS)} for an SSD, and other commands subtract "
    f"{numbers_text(DetectionSettings().pixel_means)}, with factor 1. MobileNets are usually trained with "
    "--mean 127.5,127.5,127.5 --scale-factor 0.007843, or --mean 103.94,116.78,123.68 --scale-factor 0.017"
)
LONGEST_ROW = 1000
"""Characters of a row."""


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
    """The findings about a folder.

    items: the files; fork: the fork whose layers the nets have; runnable: the nets to go on with; unmade: nets without weights
    that cannot be made, and why; anchors: of nets, by path, the generate_anchors.py near them; pairs: weights and the nets that
    they may be for, the best first; facts: what the folder tells about the preprocessing; missing: what it lacks; left_out:
    what was not read; verdicts: of what was tried.
    """

    folder: Path
    items: list[Item]
    left_out: list[str]
    fork: str = ""
    runnable: list[Runnable] = field(default_factory=list)
    unmade: dict[str, str] = field(default_factory=dict)
    anchors: dict[str, OwnAnchors] = field(default_factory=dict)
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
        return best_of(self.pairs)

    def path(self, item: Item) -> str:
        """Return a file's name for use in a command."""
        return pasted(str(self.folder / item.path), path=True)


def look(folder: str | PathLike[str], *, fork: str = "") -> Report:
    """Look through a folder. Raises Error if it is no folder.

    fork: its version is used for layers that differ between forks.
    """
    report = Report(Path(folder), *scan(Path(folder)), fork=fork)
    found, nets = report.of(SETTINGS), report.of(NET)
    report.anchors = {net.path: own for net in nets if (own := own_anchors(net.content, report.folder / net.path))}

    def settings(net: Item) -> DetectionSettings | None:
        given: DetectionSettings | None = found[0].content if len(found) == 1 else None
        own = report.anchors.get(net.path)
        return with_anchors(given or DetectionSettings(), own.numbers) if own else given

    report.pairs = pairs_of(nets, report.of(WEIGHTS), settings, fork)
    report.runnable, report.unmade = runnable(report.pairs, nets, settings, fork)
    if not report.of(WEIGHTS) and (more := len(nets) - len(report.runnable) - len(report.unmade)) > 0:
        report.left_out.append(f"the commands for {more} more nets: run minicaffe port on their own folders")
    report.facts = list(dict.fromkeys(fact for item in report.items for fact in item.facts))
    report.missing = list(_missing(report))
    report.steps = list(steps_of(report))
    return report


def _missing(report: Report) -> Iterator[str]:
    fitting, nets = {pair.weights.path for pair in report.best}, report.of(NET)
    if not nets and not report.of(WEIGHTS):
        unread = [item.path for item in report.items if item.kind == NET]
        what = "neither a prototxt nor weights: give the folder of a model"
        yield f"no prototxt can be used: the problems of {first_of(unread)} are above" if unread else what
    for item in report.of(WEIGHTS):
        if item.path not in fitting:
            near = next((pair for pair in report.pairs if pair.weights.path == item.path), None)
            yield f"a net for {item.path}" + (f": with {near.net.path}, {near.says}" if near else "")
    if nets and not report.of(WEIGHTS):
        yield "weights: no .caffemodel or .caffemodel.h5" + "; the commands use random weights" * bool(report.runnable)
    names = {Path(item.path).name for item in report.items}
    for item in report.of(SOLVER):
        for file in filter(None, (item.content.net, item.content.train_net, *item.content.test_net)):
            if Path(file).name not in names:
                yield f"{file}, the net of {item.path}"
    mean_files = [fact.removeprefix("mean file ").partition(" (") for fact in report.facts if fact.startswith("mean file ")]
    for file, _, place in {one[0]: one for one in reversed(mean_files)}.values():
        if Path(file).name not in names:
            yield f"{file}, the mean file of {place.rstrip(')')}"
    yield from _unclear(report)
    unnamed: dict[int, list[str]] = {}
    for one in report.runnable:
        classes = one.task.classes
        if one.weights and classes and classes.number > 1 and not classes.names and not names_of(report, one.task):
            unnamed.setdefault(classes.number, []).append(one.net.path)
    for number, paths in unnamed.items():
        yield f"the names of the {number} classes of {', '.join(dict.fromkeys(paths))}"
    for one in report.runnable:
        if problem := lacking_nets(report, one):
            yield problem
    for net, problem in () if report.runnable else report.unmade.items():
        yield f"a net that can be built: {net}: {problem}"
    for item in nets if not report.runnable else ():
        if shape := lacking_shape(item):
            command = f"minicaffe deploy {report.path(item)} {shape} -o deploy.prototxt"
            yield f"the size of the data of {item.path}: no field tells it. Write it in place of the capitals: {command}"
    if report.runnable and not report.of(IMAGE):
        yield f"an image: the commands use {on_one_line(example_image())}; replace it with yours"


def _unclear(report: Report) -> Iterator[str]:
    """Yield what is not clear about the settings of nets with weights: means, factors, several files of settings."""
    taking = [one for one in report.runnable if one.weights and one.takes_means and image_inputs(one.made)]
    told = {one.net.path: preparations(report.items, one.net) for one in taking}
    lacks_file = any(fact.startswith("mean file ") for fact in report.facts)
    if not lacks_file and (untold := [path for path, found in told.items() if not found]):
        nets = f" of {', '.join(untold)}" * (len(report.runnable) > 1)
        yield f"the mean and the scale of the images{nets}: no file gives them. {COMMON_MEANS}"
    for path, found in told.items():
        if len(found) > 1:
            says = "; ".join(one.says for one in found[:3]) + "; ..." * (len(found) > 3)
            yield f"which mean and scale the images of {path} have: {says}. Give --mean and --scale-factor"
    for one in report.runnable:
        settings = nearest(report.of(SETTINGS), one.net)
        if one.family is not None and not one.family.has_fixed_size and len(settings) > 1:
            names = first_of([item.path for item in settings], ", ")
            yield f"which settings {one.net.path} was trained with: give --cfg, one of {names}"
    made = {one.net.path: one.made for one in report.runnable}
    unread: dict[str, list[str]] = {}
    for net, own in report.anchors.items():
        if own.problem and (reads_anchors(made[net], own) if net in made else not made):
            unread.setdefault(own.problem, []).append(net)
    for problem, paths in unread.items():
        yield f"the anchors of {first_of(paths, ', ')}: {problem}"


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
    forks = [(one.net.path, sentence) for one in report.runnable for sentence in grouped(one.made.forks.items())]
    notes = [(item.path, note) for item in report.items for note in item.notes]
    yield "Forks, and unsupported fields", _headed(forks + notes)
    yield "Preprocessing found in the folder", [("", fact) for fact in report.facts]
    yield "What is missing", [("", one) for one in report.missing]
    yield "What was left out", [("", one) for one in report.left_out]
    yield "Tried", _headed([(each.pair.name, f"{each.what} {each.word}: {each.says}") for each in report.verdicts])
    yield NEXT, [(step.why, step.command) for step in report.steps]


def _headed(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return rows of a name and a text with each name at its first row alone."""
    names = ["", *(name for name, _ in rows)]
    return [("" if name == before else name, says) for before, (name, says) in zip(names, rows, strict=False)]


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
button { font: inherit; margin-left: 0.5rem; padding: 0 0.6rem; }
"""
SCRIPT = """
for (const button of document.querySelectorAll("button")) {
  button.onclick = async () => {
    const code = button.previousElementSibling;
    getSelection().selectAllChildren(code);
    try { await navigator.clipboard.writeText(code.textContent); }
    catch { document.execCommand("copy"); }  // a page that is no secure context has no clipboard
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
}
"""
"""Of the buttons that copy a command."""


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
            if head == NEXT:
                button = f'<button type="button" aria-label="Copy the command: {escape(name)}">Copy</button>'
                shown = f"<code>{shown}</code>{button * bool(name)}"
            body.append((f"<dt>{escape(name)}</dt>" if name else "") + f"<dd>{shown}</dd>")
        body.append("</dl>")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    start = ["<!DOCTYPE html>", '<html lang="en">', f"<head>{head}<style>{STYLE}</style></head>", "<body>"]
    return "\n".join([*start, *body, f"<script>{SCRIPT}</script>", "</body></html>", ""])
