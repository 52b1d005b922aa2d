"""PSROIPooling by compiled loops: the grid's places split across all threads."""

from __future__ import annotations

from minicaffe.blob import Array
from minicaffe.compiled.channel_blocks import PLACE_TYPES, Part, add_to_places, pool_places, read_only, read_place, write_place
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.roi import psroi_pooling
from minicaffe.layers.roi.roi_geometry import BIN_TYPES, BinPlan, Ints

pool_place = loop(f"T[:,:,::1], int64[::1], {BIN_TYPES}, T[:,:,:,::1], int64, int64")(psroi_pooling.ps_roi_pool_by_definition)
add_place = loop(f"Array(T, 4, 'C', True), int64[::1], {BIN_TYPES}, T[:,:,::1], int64, int64")(
    psroi_pooling.ps_roi_pool_backward_by_definition
)


@loop(f"{PLACE_TYPES}, Array(T, 3, 'C', True), int64[::1], {BIN_TYPES}, T[:,:,:,::1]")
def pool_places_of(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    first: int, last: int, pixels: Array, x: Array, rois: Ints, h0: Ints, h1: Ints, w0: Ints, w1: Ints, y: Array
) -> None:
    """Compute y (R, D, G, G) at an image's rois from its maps x (D, G * G, H * W), for some places of the grid."""
    for place in range(first, last):
        read_place(x, pixels, place)
        pool_place(pixels, rois, h0, h1, w0, w1, y, place // y.shape[2], place % y.shape[2])


@loop(f"{PLACE_TYPES}, Array(T, 4, 'C', True), int64[::1], {BIN_TYPES}, T[:,:,::1]")
def add_places(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    first: int, last: int, pixels: Array, dy: Array, rois: Ints, h0: Ints, h1: Ints, w0: Ints, w1: Ints, dx: Array
) -> None:
    """Compute dx (D, G * G, H * W), for some places of the grid, from the dy (R, D, G, G) of the image's rois."""
    for place in range(first, last):
        pixels[:] = 0
        add_place(dy, rois, h0, h1, w0, w1, pixels, place // dy.shape[2], place % dy.shape[2])
        write_place(pixels, dx, place)


@provides(psroi_pooling.ps_roi_pool, loops=(pool_places_of,))
def ps_roi_pool(x: Array, plan: BinPlan, group: int, y: Array) -> None:
    """Split the images and the places of the grid across the threads."""

    def pool(part: Part, maps: Array, rois: Ints) -> None:
        pool_places_of(*part, maps, rois, *plan.places, y)

    pool_places(pool, x, plan.images, group)


@provides(psroi_pooling.ps_roi_pool_backward, loops=(add_places,))
def ps_roi_pool_backward(dy: Array, plan: BinPlan, group: int, dx: Array) -> None:
    """Split the images and the places of the grid across the threads."""
    given = read_only(dy)

    def add(part: Part, maps: Array, rois: Ints) -> None:
        add_places(*part, given, rois, *plan.places, maps)

    add_to_places(add, dx, plan.images, group)
