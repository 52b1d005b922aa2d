"""The proposals of a region proposal network (RPN), for training a Fast R-CNN on them.

    image -> scaled, means subtracted -> net -> rois -> boxes (R, 4) in pixels of the image, clipped to it

Source: py-faster-rcnn's lib/rpn/generate.py and tools/train_faster_rcnn_alt_opt.py.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import clip_boxes, rows
from minicaffe.data.roidb import entry_pixels, image_name
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error, os_errors_as
from minicaffe.files import replacing, unlinked
from minicaffe.net import Net

from .detect import Floats, run_net
from .inputs import check_scores, proposal_sources, proposals_file


def proposal_settings(settings: DetectionSettings) -> DetectionSettings:
    """Return the settings of the net that makes proposals for training: all boxes go into the NMS, and 2000 are kept.

    Parameters
    ----------
    settings : DetectionSettings
        The settings of the training.

    Returns
    -------
    DetectionSettings
        The settings with the original script's RPN_PRE_NMS_TOP_N and RPN_POST_NMS_TOP_N under TEST.
    """
    return replace(settings, test=replace(settings.test, rpn_pre_nms_top_n=-1, rpn_post_nms_top_n=2000))


def propose(net: Net, image: NDArray[np.uint8]) -> Floats:
    """Return the proposals of an RPN for an image.

    Parameters
    ----------
    net : Net
        The test net of the RPN, with its weights. Its settings limit the number of proposals.
    image : ndarray
        A uint8 array (H, W, 3) in the order blue, green, red.

    Returns
    -------
    ndarray
        float32 boxes (R, 4) as x1, y1, x2, y2 in pixels of the image, best first.

    Raises
    ------
    Error
        The net has other inputs than data and im_info, has no blob rois, or gives scores or deltas that are NaN or infinite.
    """
    if set(net.inputs) != {"data", "im_info"} or "rois" not in net.blobs:
        raise Error(
            f'{net.file}: the test net of an RPN has the inputs data and im_info, and a blob "rois"; '
            f"this net's inputs are {', '.join(net.inputs) or 'none'}"
        )
    scale, _ = run_net(net, image, net.settings, None)
    for name in proposal_sources(net):
        check_scores(net.blobs[name].read_data(), name)
    return clip_boxes(rows(net.blobs["rois"])[:, 1:] / scale, image.shape[:2])  # division by the scale rounds


def proposal_files(roidb: Sequence[Entry], folder: str | PathLike[str]) -> list[Path]:
    """Return the file of each image's proposals in a folder: IMAGE-NAME.npy.

    Parameters
    ----------
    roidb : sequence of dict
        The images, as from `minicaffe.roidb.load_roidb`.
    folder : str or path
        The folder.

    Returns
    -------
    list of Path
        The paths, in the order of the images.

    Raises
    ------
    Error
        Two images have the same name without suffix, or an image is not a file.
    """
    found: dict[Path, str] = {}
    for entry in roidb:
        image, name = entry["image"], image_name(entry)
        if isinstance(image, np.ndarray):
            raise Error(f"{name} is not a file: its proposals have no name")
        path = proposals_file(folder, Path(image))
        if path in found:
            raise Error(f"{found[path]} and {name}: the proposals of both would be {path.name}: rename one of the images")
        found[path] = name
    return list(found)


def write_proposals(
    net: Net,
    roidb: Sequence[Entry],
    folder: str | PathLike[str],
    *,
    skip_existing: bool = False,
    on_image: Callable[[int, int], object] | None = None,
) -> None:
    """Write the proposals of an RPN for each image of a roidb: FOLDER/IMAGE-NAME.npy, with boxes (R, 4).

    `minicaffe train --proposals FOLDER` reads them.

    Parameters
    ----------
    net : Net
        The test net of the RPN, with its weights, made with `proposal_settings`.
    roidb : sequence of dict
        The images, as from `minicaffe.roidb.load_roidb`.
    folder : str or path
        The folder, which is made if it is missing.
    skip_existing : bool, default False
        True to skip images whose file exists.
    on_image : callable, optional
        Called after each image with the number of images done, and of all.

    Raises
    ------
    Error
        An image cannot be read, a file cannot be written, or as for `propose` and `proposal_files`.
    """
    files = proposal_files(roidb, folder)
    with os_errors_as(Error, f"{folder}: cannot make the folder of the proposals"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    for i, (entry, path) in enumerate(zip(roidb, files, strict=True), 1):
        if not (skip_existing and path.exists()):
            content = io.BytesIO()
            np.save(content, propose(net, entry_pixels(entry)))
            with replacing(unlinked(path)) as temporary:
                temporary.write_bytes(content.getvalue())
        if on_image:
            on_image(i, len(files))
