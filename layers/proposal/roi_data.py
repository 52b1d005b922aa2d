"""RoIData: training images with their boxes, from a roidb. Also stands in for roi_data_layer.layer.RoIDataLayer.

    3 tops: data, im_info, gt_boxes (a net with an RPN)
    6 tops: data, rois, labels, bbox_targets and its two weights (without an RPN)
    5 tops: without the outside weights, and 3 tops of which the second is called rois: without a regression (Fast R-CNN)

In TRAIN, settings can turn on SSD's augmentation (augmented_images.py).
Source: py-faster-rcnn's roi_data_layer/layer.py and minibatch.py, and fast-rcnn's. Here every image is seen once before any is
seen again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.images import Scale, image_blob, scaled_image
from minicaffe.data.roidb import (
    add_bbox_regression_targets,
    entry_pixels,
    image_name,
    normalise_targets,
    prepare_roidb,
    regression_targets,
    usable,
)
from minicaffe.data.roidb_entry import Entry, Roidb
from minicaffe.data.settings import DetectionSettings
from minicaffe.data.shard import current_shard
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import DataError
from minicaffe.formats.arrays import checksum
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.proposal.augmented_images import augmentation_of
from minicaffe.layers.proposal.param_str import (
    ANY_NAME,
    INSIDE,
    LABELS,
    OUTSIDE,
    TARGETS,
    StandIn,
    TopName,
    layer_parameters,
    whole_parameter,
)
from minicaffe.layers.proposal.proposal import ROIS
from minicaffe.layers.proposal.proposal_target import class_targets, put_training_rois, sample_rois
from minicaffe.mode import TRAIN

from .dynamic_tops import DynamicTops


def shuffled(roidb: Sequence[Entry], images_per_batch: int, aspect_grouping: bool) -> Array:
    """Return all indices of roidb in random order.

    With aspect_grouping a batch has only wide or only tall images, if possible.
    """
    generator = rng.shared_generator()
    if not aspect_grouping or images_per_batch == 1:
        return generator.permutation(len(roidb))
    wide = np.array([entry["width"] >= entry["height"] for entry in roidb])
    inds = np.concatenate([generator.permutation(np.flatnonzero(wide)), generator.permutation(np.flatnonzero(~wide))])
    whole = len(inds) // images_per_batch * images_per_batch
    batches = inds[:whole].reshape(-1, images_per_batch)
    return np.concatenate([generator.permutation(batches).reshape(-1), inds[whole:]])  # an incomplete batch stays last


def gt_of(entry: Entry, scale: Scale) -> Array:
    """Return an entry's gt boxes (G, 5) in pixels of the scaled image: x1, y1, x2, y2, class."""
    gt = np.flatnonzero(entry["gt_classes"] > 0)
    return np.column_stack([entry["boxes"][gt] * scale, entry["gt_classes"][gt]])


def batch_rois(
    entries: Sequence[Entry], scales: Sequence[Scale], num_classes: int, settings: DetectionSettings
) -> tuple[Array, Array, Array, Array]:
    """Return sampled rois (S, 5), labels (S,), targets (S, 4 K) and inside weights (S, 4 K) of the entries, in order."""
    train = settings.train
    per_image = train.batch_size // len(entries) if train.batch_size > 0 else -1
    columns = 2 if train.agnostic else num_classes
    parts = []
    for i, (entry, scale) in enumerate(zip(entries, scales, strict=True)):
        chosen, foreground = sample_rois(entry["max_overlaps"], per_image, train)
        labels = entry["max_classes"][chosen].copy()
        labels[foreground:] = 0  # sampled background, whose best gt box has another class
        rois = np.column_stack([np.full(len(chosen), i), entry["boxes"][chosen] * scale])
        # bbox_targets (R, 5): class, then the four targets
        targets, weights = class_targets(
            entry["bbox_targets"][chosen, 0] * (labels > 0), entry["bbox_targets"][chosen, 1:], columns, train
        )
        parts.append((rois, labels, targets, weights))
    rois, labels, targets, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rois, labels, targets, weights


class RoIData(DynamicTops, DataLayer, StandIn):
    """A batch of scaled images with the detector's targets. Its batches need set_roidb.

    No bottom. With an RPN, one image a batch: data (1, 3, H, W), im_info (1, 3): H, W, scale, gt_boxes (G, 5): x1, y1, x2, y2,
    class; with SCALE_MULTIPLE_OF im_info is (1, 6), as of prepare_image. Without, IMS_PER_BATCH images: data (N, 3, H, W), rois
    (S, 5, 1, 1), labels (S, 1, 1, 1), targets and the two weights (S, 4 K, 1, 1); of these three also the first two, or none.
    Boxes are in pixels of the scaled images. param_str: num_classes K, background included.
    batch: the entries of the last batch.
    bbox_means, bbox_stds (K, 4): what the targets were normalised with; None without, and where the roidb brought its own.
    Raises LayerError for another number of tops, for a batch before set_roidb, and for a roidb that cannot be trained on.
    """

    type = "RoIData"
    num_top = (3, 6)
    dynamic_axis = None
    param_keys = ("num_classes",)
    inert_keys = ("feat_stride", "scales")

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        if count == 3:
            return ANY_NAME, TopName(("info", "roi")), TopName(("gt", "box", "label"))
        return ANY_NAME, TopName(("roi",)), LABELS, TARGETS, INSIDE, OUTSIDE

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(top) == 4:
            forms = "3 (with an RPN: data, im_info, gt_boxes; without a regression: data, rois, labels), 5 or 6"
            raise self.error(f"takes {forms}, got 4 tops", "top")
        self.num_classes = whole_parameter(self, layer_parameters(self), "num_classes")
        self.shard = current_shard(self.phase)
        self.has_rpn = len(top) == 3 and self.param.top[1:2] != ["rois"]
        self.regresses = len(top) > 3
        self.dynamic_rois = not self.has_rpn  # on the instance, because the type has both forms
        self.roidb: Roidb = []
        self.batch: Sequence[Entry] = []
        self.order = np.zeros(0, int)
        self.bbox_means: Array | None = None
        self.bbox_stds: Array | None = None
        self._statistics: tuple[Array, Array] | None = None
        self.augmentation = augmentation_of(self.settings) if self.phase == TRAIN else None
        train = self.settings.train
        self.images_per_batch = 1 if self.has_rpn else train.ims_per_batch
        # The largest possible shape; forward sets each batch's size.
        top[0].reshape(self.images_per_batch, 3, max(train.scales), train.max_size)
        columns = 4 * (2 if train.agnostic else self.num_classes)
        shapes = [(1, 3), (1, 5)] if self.has_rpn else [(1, n, 1, 1) for n in (5, 1, columns, columns, columns)]
        for blob, shape in zip(top[1:], shapes, strict=False):
            blob.reshape(shape)

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        batch = self.settings.train.batch_size
        given = rois or max(batch, 0) or ROIS
        for blob in top[1:]:
            blob.reshape(min(batch, given) if batch > 0 else given, *blob.shape[1:])

    def set_roidb(self, roidb: Sequence[Entry]) -> None:
        """Train on roidb (see minicaffe.roidb; the originals' entries also work) from the next batch on. Raises LayerError."""
        try:
            entries = usable(prepare_roidb(roidb, self.num_classes), self.settings)
        except DataError as error:
            raise self.error(str(error)) from error
        if not entries:
            raise self.error(f"a roidb of {len(roidb)} images has no image with boxes to train on")
        if self.augmentation:
            self._check_augmentation(entries)
        if not self.has_rpn and any("bbox_targets" not in entry for entry in entries):
            self._statistics = add_bbox_regression_targets(entries, self.settings)
            if self.regresses:
                self.bbox_means, self.bbox_stds = self._statistics
        self.roidb, self.order = entries, np.zeros(0, int)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.roidb:
            raise self.error(
                "has no images: give --roidb to `minicaffe train` or `trace`, or call set_roidb on this layer before forward"
            )
        self.batch = [self.roidb[i] for i in self._next_batch()]
        entries, images, scales = zip(*(self._image(entry) for entry in self.batch), strict=True)
        data = image_blob(images)
        top[0].reshape(*data.shape)
        top[0].data[...] = data
        if self.has_rpn:
            gt_boxes = gt_of(entries[0], scales[0])
            info = (*data.shape[2:], *np.atleast_1d(scales[0]))
            top[1].reshape(1, len(info))
            top[1].data[...] = info
            top[2].reshape(*gt_boxes.shape)
            top[2].data[...] = gt_boxes
        else:
            put_training_rois(top[1:], *batch_rois(entries, scales, self.num_classes, self.settings))

    def training_state(self) -> dict[str, Any]:
        """Return the number of images, and the images that are left of this epoch."""
        return {"images": len(self.roidb), "order": self.order.tolist()}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        """Continue with the images that were left. Raises LayerError if the roidb had another number of images."""
        fields = Fields(state)
        images = fields.whole("images", 0, MOST)
        if images != len(self.roidb):
            raise self.error(
                f"the snapshot was made with a roidb of {images} images, this one has {len(self.roidb)}: "
                "give the same images (and set_roidb before restore), or start anew from the snapshot's weights"
            )
        self.order = np.array(fields.wholes("order", 0, images - 1), int)

    def data_fingerprint(self) -> dict[str, Any]:
        parts = (np.asarray(entry[part], float) for entry in self.roidb for part in ("boxes", "gt_classes"))
        return {"images": len(self.roidb), "checksum": checksum(*parts)}

    def _next_batch(self) -> Array:
        """Return the indices of this rank's next images. The ranks share one order and take its batches in turn."""
        # Each rank draws for all ranks, to keep their orders equal.
        return [self._next_of_order() for _ in range(self.shard.count)][self.shard.rank]

    def _next_of_order(self) -> Array:
        """Return the indices of the next images, from a new random order if too few are left."""
        if len(self.order) < self.images_per_batch:
            self.order = shuffled(self.roidb, self.images_per_batch, self.settings.train.aspect_grouping)
        batch, self.order = np.split(self.order, [self.images_per_batch])
        return batch

    def _image(self, entry: Entry) -> tuple[Entry, Array, Scale]:
        """Return the entry, its image, scaled to a random one of TRAIN.SCALES, and its scale."""
        train = self.settings.train
        try:
            pixels = entry_pixels(entry)
            target = train.scales[rng.generator().integers(len(train.scales))]
            pixels = pixels[:, ::-1] if entry["flipped"] else pixels
            if self.augmentation:
                entry, pixels = self.augmentation(entry, pixels, rng.generator())
                if self._statistics and "bbox_targets" not in entry:
                    entry["bbox_targets"] = regression_targets(entry, train.bbox_thresh)
                    normalise_targets(entry["bbox_targets"], *self._statistics, train)
            return entry, *scaled_image(pixels, self.settings.pixel_means, target, train.max_size, train.scale_multiple_of)
        except DataError as error:
            raise self.error(str(error)) from error

    def _check_augmentation(self, entries: Sequence[Entry]) -> None:
        """Raise LayerError for images that cannot be augmented."""
        assert self.augmentation is not None
        try:
            for entry in entries:
                self.augmentation.check(entry)
                if not self.has_rpn and "bbox_targets" in entry:
                    what = "bbox_targets, which do not fit the augmented image: leave them out"
                    raise DataError(f"{image_name(entry)}: brings its own {what}")
        except DataError as error:
            raise self.error(str(error)) from error
