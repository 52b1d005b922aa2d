"""The layer types of forks that are not built in, and the repositories that they are from."""

from __future__ import annotations

_TYPES = {
    "MobileNet-YOLO (github.com/eric612/MobileNet-YOLO)": "LaneData",
    "Faster R-CNN in C++ (github.com/makefile/frcnn)": "FPNProposal",
    "SqueezeDet for OpenCV (github.com/kvmanohar22/caffe)": "BboxData",
    "Convolutional Pose Machines (github.com/CMU-Perceptual-Computing-Lab/caffe_train)": "CPMData",
    "OpenPose (github.com/CMU-Perceptual-Computing-Lab/caffe_rtpose)": "ImResize",
    "C3D (github.com/facebook/C3D)": """DownSampling VideoSegmentationData
        VideoWithVoxelTruthData VolumeData VoxelCustomLoss VoxelSoftmax VoxelSoftmaxLoss""",
    "DeconvNet (github.com/HyeonwooNoh/caffe)": """BinAccuracy DropoutChannel RedAccuracy RedSoftmaxLoss
        SelectSegBinary WindowClsData WindowInstSegData WindowSegBinary WindowSegData""",
    "deepsaldet (github.com/Robert0812/deepsaldet)": "MCWindowData",
    "temporal segment networks (github.com/yjxiong/caffe)": "SegData",
    "DeepLab (bitbucket.org/aquariusjay/deeplab-public-ver2)": "DenseCRF DomainTransform MatRead MatWrite UniqueLabel",
    "HED (github.com/s9xie/hed)": "ImageLabelmapData",
    "happynear's Caffe (github.com/happynear/caffe-windows)": "SoftTruncation",
    "FlowNet (github.com/lmb-freiburg/flownet2)": "LpqLoss",
    "Intel Caffe (github.com/intel/caffe)": "MKLBatchNorm MnActivation SpatialDropout",
}  # fmt: skip
FORK_TYPES = {kind: fork for fork, kinds in _TYPES.items() for kind in kinds.split()}
"""Types that are known to belong to a fork and are not built in; an unknown type's error names it."""
