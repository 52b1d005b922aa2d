"""Running a net and its ONNX model on the same inputs."""

from __future__ import annotations

import os

from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, differences, run_of

from .session import run_model


def compare_with_net(net: Net, path: str | os.PathLike[str], *, until: str | None = None) -> list[Difference]:
    """Run the net (up to a layer) and the model on what the net's inputs hold; a Difference for each output of the model.

    Proposals with nearly equal scores that came in another order are matched first, and what is computed from them with them.
    """
    inputs = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    made = run_model(path, inputs)
    return differences(run_of(net, made, until=until), made)
