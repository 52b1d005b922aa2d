"""The ROI family: geometry of rois and bins, maxima, means and bilinear samples."""
