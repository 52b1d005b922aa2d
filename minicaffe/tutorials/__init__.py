"""The course's helpers: checks of a learner's answers, and figures to play with.

    from minicaffe.tutorials import check, figures

    check("4.nms", nms)
    figures.iou()

docs/tutorials has the lessons; lesson_4.py has the checks of lesson 4.
"""

from .checks import Wrong, answered, check

__all__ = ["Wrong", "answered", "check"]
