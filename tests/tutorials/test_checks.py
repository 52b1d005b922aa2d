"""Each question of the course: its right answer passes, each slip gets its hint, other answers get the case that differs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicaffe.errors import Error
from minicaffe.tutorials import Wrong, answered, check
from minicaffe.tutorials.checks import Question, find, questions

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
ALL = list(questions())
SLIPS = [(asked, slip) for asked in ALL for slip in asked.slips]


def cases(asked: Question) -> list[tuple[Any, ...]]:
    return list(asked.cases(np.random.default_rng(1)))


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.name)
def test_the_right_answer(asked: Question, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2):
        check(asked.name, asked if cases(asked) != [()] else asked(), seed)
    assert capsys.readouterr().out.count(f"✓ {asked.name}: right") == 2
    assert asked.slips, "a question knows at least one usual wrong solution"


@pytest.mark.parametrize("asked, slip", SLIPS, ids=lambda one: getattr(one, "name", "") or one.answer.__name__)
def test_each_slip_gets_its_own_hint(asked: Question, slip: Any) -> None:
    for seed in (1, 2):
        with pytest.raises(Wrong, match=re.escape(slip.hint)):
            check(asked.name, slip.answer if cases(asked) != [()] else slip.answer(), seed)


@pytest.mark.parametrize("asked", [one for one in ALL if cases(one) != [()]], ids=lambda asked: asked.name)
def test_another_wrong_answer_gets_a_case(asked: Question) -> None:
    with pytest.raises(Wrong, match=rf"{asked.name}: \d+ of \d+ cases differ"):
        check(asked.name, lambda *arguments: 12345.678)


def test_no_answer_yet(capsys: pytest.CaptureFixture[str]) -> None:
    check("1.iou", lambda a, b: None)
    assert capsys.readouterr().out == "1.iou: no answer yet\n"


def test_nbgraders_stub_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def stub(*arguments: Any) -> Any:
        raise NotImplementedError

    check("1.iou", stub)
    assert capsys.readouterr().out == "1.iou: no answer yet\n"
    with pytest.raises(Wrong, match=r"1\.iou: no answer"):
        check("1.iou", stub, required=True)
    assert answered("1.iou", stub) is find("1.iou").answer


def test_later_cells_use_minicaffes_function_until_there_is_an_answer() -> None:
    def mine(boxes: Any, scores: Any, threshold: float) -> list[int]:
        return []  # wrong, but an answer

    assert answered("9.nms", mine) is mine
    assert answered("9.nms", lambda boxes, scores, threshold: None) is find("9.nms").answer


def test_an_answer_cannot_change_the_cases() -> None:
    def spoils(a: Any, b: Any) -> Any:
        a[:] = b[:] = 0
        return 1.0

    with pytest.raises(Wrong, match="differ"):
        check("1.iou", spoils)


def test_an_unknown_question() -> None:
    with pytest.raises(Error, match=r"no question '1.iuo'; did you mean '1.iou'\?; there are 1.iou"):
        find("1.iuo")


def test_the_message_shows_the_first_case_that_differs() -> None:
    with pytest.raises(Wrong) as found:
        check("1.iou", lambda a, b: np.float64(0.25))
    lines = str(found.value).splitlines()
    assert lines[0] == "1.iou: 11 of 11 cases differ."
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["with", "with", "yours", "minicaffe's"]
    assert "0.25" in lines[3] and "0.09" in lines[4]


def test_of_several_results_the_message_shows_the_first_that_differs() -> None:
    def one_more(scores: Any, labels: Any) -> Any:
        loss, gradient = find("9.softmax_loss")(scores, labels)
        return [loss, gradient + 1]

    with pytest.raises(Wrong) as found:
        check("9.softmax_loss", one_more)
    lines = [line.strip() for line in str(found.value).splitlines() if re.match(r" *[a-z'\[\]1]+: ", line)]
    words = [line.split(":")[0] for line in lines]
    assert words == ["right", "wrong", "with", "with", "yours[1]", "minicaffe's[1]", "difference"]
    assert lines[:2] == ["right: the loss", "wrong: the gradient of scores"]
    with pytest.raises(Wrong, match="yours: 0"):
        check("9.softmax_loss", lambda scores, labels: 0)
    with pytest.raises(Wrong, match="parts: 1 instead of 2: the loss, the gradient of scores"):
        check("9.softmax_loss", lambda scores, labels: find("9.softmax_loss")(scores, labels)[:1])


def test_the_message_names_the_largest_difference_of_large_arrays() -> None:
    def one_off(*case: Any) -> Any:
        top, *gradients = find("9.convolution")(*case)
        top[1, 2, 0, 1] += 3
        top[0, 0, 0, 0] += 1
        return [top, *gradients]

    with pytest.raises(Wrong, match=r"difference: 2 of \d+ numbers; the largest at \[1, 2, 0, 1\]: yours") as found:
        check("9.convolution", one_off)
    assert len(str(found.value).splitlines()) < 20
    with pytest.raises(Wrong, match=r"difference: yours has the shape \(2, 3, 30\), minicaffe's \(2, 3, 5, 6\)"):
        check("9.convolution", lambda *case: [find("9.convolution")(*case)[0].reshape(2, 3, -1)])


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.name)
def test_it_is_asked_in_its_lesson(asked: Question) -> None:
    lessons = FOLDER.glob(f"{asked.name.split('.')[0]}-*.ipynb")
    cells = ["".join(cell["source"]) for path in lessons for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    assert any(f'check("{asked.name}"' in cell for cell in cells)
