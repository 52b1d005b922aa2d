"""The ROI layers: geometry of rois and bins, maxima, means and bilinear samples."""
