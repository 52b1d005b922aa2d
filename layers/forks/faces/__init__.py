"""Face recognition: caffe-face, SphereFace and happynear's Caffe."""
