"""A report on the folder of an old model: what each file is, which weights fit which net, what is missing, what to do next.

    report = minicaffe.porting.folder.look("old_model/")
    report.pairs[0].fit, [step.command for step in report.steps]

Reading runs nothing of the folder, writes nothing, and follows no link.
"""

from .report import Report, Verdict, look, page, text
from .scan import Item

__all__ = ["Item", "Report", "Verdict", "look", "page", "text"]
