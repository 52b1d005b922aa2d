"""Checks of a learner's answers against minicaffe's own results.

A lesson's module defines each check as the function that gives the right answer. Usual wrong solutions stand below it:

    @question(cases=lambda rng: [(np.array([0.5, 1.5, -2.5]),)])
    def halves(values):
        return half_away_from_zero(values)

    @halves.slip("np.round takes a half to the even neighbour: 0.5 to 0, 1.5 to 2. C's round goes away from zero.")
    def to_even(values):
        return np.round(values)
"""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np

from minicaffe.errors import Error, nearest

Answer = Callable[..., Any]
Cases = Callable[[np.random.Generator], Iterable[tuple[Any, ...]]]

SEED = 1
"""Of the cases that a check draws."""


class Wrong(AssertionError):  # noqa: N818
    """A wrong answer. Its message says what differs, and where it knows why, a hint. Jupyter shows the message alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"✗ {self}"]


@dataclass(frozen=True)
class Slip:
    """A usual wrong solution, and the hint for those who find it."""

    answer: Answer
    hint: str


@dataclass
class Question:
    """A question of a lesson.

    Parameters
    ----------
    name : the lesson's number and a word, as "4.nms"
    answer : the function that gives the right answer
    cases : returns the arguments of each call, drawn by a generator of random numbers
    rtol, atol : tolerances, as of numpy.allclose
    parts : names of the results, if the answer returns a list of several
    """

    name: str
    answer: Answer
    cases: Cases
    rtol: float = 1e-4
    atol: float = 1e-5
    parts: tuple[str, ...] = ()
    slips: list[Slip] = field(default_factory=list)

    def __call__(self, *arguments: Any) -> Any:
        """Return the right answer."""
        return self.answer(*arguments)

    def slip(self, hint: str) -> Callable[[Answer], Answer]:
        """Add a usual wrong solution (a decorator). hint: the text for an answer that gives its results."""

        def add(answer: Answer) -> Answer:
            self.slips.append(Slip(answer, hint))
            return answer

        return add

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two results are equal within the tolerances: numbers, arrays, or tuples and lists of them."""
        if isinstance(other, tuple | list):
            return _length(one) == len(other) and all(map(self.same, one, other))
        try:
            found, wanted = np.asarray(one), np.asarray(other)
            if found.shape != wanted.shape:
                return False
            if wanted.dtype.kind not in "fc":
                return bool(np.array_equal(found, wanted))
            return bool(np.allclose(found, wanted, self.rtol, self.atol, equal_nan=True))
        except (TypeError, ValueError):
            return False


def question(
    cases: Cases = lambda rng: [()], *, rtol: float = 1e-4, atol: float = 1e-5, parts: Sequence[str] = ()
) -> Callable[[Answer], Question]:
    """Make a lesson's function the right answer of a question, named by the lesson and the function (a decorator)."""

    def made(answer: Answer) -> Question:
        lesson = answer.__module__.rpartition("lesson_")[2]
        return Question(f"{lesson}.{answer.__name__}", answer, cases, rtol, atol, tuple(parts))

    return made


def check(name: str, answer: Any, seed: int = SEED, *, required: bool = False) -> None:
    """Compare an answer with minicaffe's and print the result.

    Parameters
    ----------
    name : of the question, as "4.nms"
    answer : a function, or a value for a question without arguments. None is no answer yet, and so is a function that
        returns None or raises NotImplementedError
    seed : of the cases that are drawn
    required : also raise Wrong if there is no answer yet, as a grader wants

    Raises
    ------
    Wrong
        The answer differs. The message has a hint, or the first case that differs.
    Error
        There is no such question.
    """
    asked = find(name)
    cases = list(asked.cases(np.random.default_rng(seed)))
    given = [_call(answer, case) for case in cases]
    if any(one is None for one in given):
        if required:
            raise Wrong(f"{name}: no answer")
        print(f"{name}: no answer yet")
        return
    right = [_call(asked, case) for case in cases]
    wrong = [k for k in range(len(cases)) if not asked.same(given[k], right[k])]
    if not wrong:
        print(f"✓ {name}: right" + f" in {len(cases)} cases" * (len(cases) > 1))
        return
    for slip in asked.slips:
        if all(asked.same(mine, _call(slip.answer, case)) for mine, case in zip(given, cases, strict=True)):
            raise Wrong(f"{name}: {slip.hint}")
    k = wrong[0]
    lines = [f"{name}: {len(wrong)} of {len(cases)} cases differ.", *_verdicts(asked, given[k], right[k])]
    raise Wrong("\n".join([*lines, *_told(asked, cases[k], *_different(asked, given[k], right[k]))]))


def answered(name: str, answer: Answer) -> Answer:
    """Return a learner's function, or minicaffe's while it has no answer yet, for later cells that call it.

    Parameters
    ----------
    name : of the question, as "4.nms"
    answer : the function

    Returns
    -------
    callable
        The function, or the one that gives the right answer.
    """
    asked = find(name)
    case = next(iter(asked.cases(np.random.default_rng(SEED))))
    return asked.answer if _call(answer, case) is None else answer


def find(name: str) -> Question:
    """Return a question. Raises Error if there is none of the name."""
    found = {asked.name: asked for asked in questions()}
    if name not in found:
        near = nearest(name, found)
        raise Error(f"no question {name!r}{f'; did you mean {near[0]!r}?' if near else ''}; there are {', '.join(found)}")
    return found[name]


def questions() -> Iterator[Question]:
    """Yield every question, in the order of the lessons."""
    names = [entry.name for entry in files(__package__).iterdir()]
    numbers = sorted(int(found[1]) for name in names if (found := re.fullmatch(r"lesson_(\d+)\.py", name)))
    for number in numbers:
        module = importlib.import_module(f"{__package__}.lesson_{number}")
        yield from (value for value in vars(module).values() if isinstance(value, Question))


def _call(answer: Any, case: Sequence[Any]) -> Any:
    """Return an answer's result: None if there is none yet. A function gets copies, so that it cannot change a case."""
    try:
        return answer(*copy.deepcopy(case)) if callable(answer) else answer
    except NotImplementedError:  # nbgrader puts this in the place of a solution
        return None


def _length(value: Any) -> int:
    return len(value) if isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim) else -1


def _different(asked: Question, mine: Any, right: Any) -> tuple[Any, Any, str]:
    """Return two results and "", or of results with several parts the first that differs, and its index."""
    if isinstance(right, tuple | list) and _length(mine) >= 0:
        for p, (one, other) in enumerate(zip(mine, right, strict=False)):
            if not asked.same(one, other):
                return one, other, f"[{p}]"
    return mine, right, ""


def _verdicts(asked: Question, mine: Any, right: Any) -> list[str]:
    """Return lines with the names of the right and the wrong parts, if the parts have names."""
    if not asked.parts or _length(mine) < 0:
        return []
    named = list(zip(asked.parts, mine, right, strict=False))
    good = [name for name, one, other in named if asked.same(one, other)]
    bad = [name for name, one, other in named if not asked.same(one, other)]
    found = [(word, ", ".join(names)) for word, names in (("right", good), ("wrong", bad)) if names]
    if not bad and _length(mine) != len(right):
        found.append(("parts", f"{_length(mine)} instead of {len(right)}: {', '.join(asked.parts)}"))
    return [f"{word:>14}: {names}" for word, names in found]


def _told(asked: Question, case: Sequence[Any], mine: Any, right: Any, part: str) -> list[str]:
    parts = [("with", one) for one in case] + [(f"yours{part}", mine), (f"minicaffe's{part}", right)]
    with np.printoptions(precision=4, suppress=True, threshold=FULL, edgeitems=3):
        lines = [f"{word:>14}: {_shown(value)}" for word, value in parts]
    return [*lines, *(f"{'difference':>14}: {text}" for text in _largest_difference(asked, mine, right))]


FULL = 40
"""The most numbers that a message shows of an array without leaving some out."""

FIRST = 6
"""The numbers shown of an array with three or more axes, which would take many lines."""


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list) and any(isinstance(one, np.ndarray | tuple | list) for one in value):
        return f"[{'; '.join(map(_shown, value))}]"
    if isinstance(value, np.ndarray) and value.size > 1:
        is_long = value.ndim > 2 and value.size > FIRST
        text = f"{str(value.ravel()[:FIRST])[:-1]} ...]" if is_long else str(value)
        return f"{value.dtype} {value.shape} " + text.replace("\n", "\n" + " " * 16)
    return str(value)


def _largest_difference(asked: Question, mine: Any, right: Any) -> list[str]:
    """Return a line on how two arrays differ: in their shapes, or where most."""
    if not isinstance(right, np.ndarray) or right.size < 2 or right.dtype.kind not in "fciu":
        return []
    try:
        found = np.asarray(mine, float)
    except (TypeError, ValueError):
        return []
    if found.shape != right.shape:
        return [f"yours has the shape {found.shape}, minicaffe's {right.shape}"]
    with np.errstate(all="ignore"):
        apart = np.abs(found - right)
    worst = np.unravel_index(int(np.argmax(np.where(np.isnan(apart), np.inf, apart))), right.shape)
    count = np.count_nonzero(~np.isclose(found, right, asked.rtol, asked.atol, equal_nan=True))
    index = ", ".join(map(str, worst))
    return [
        f"{count} of {right.size} numbers; the largest at [{index}]: yours {found[worst]:.4g}, minicaffe's {right[worst]:.4g}"
    ]
