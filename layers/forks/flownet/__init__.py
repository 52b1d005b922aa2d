"""FlowNet, FlowNet 2 and PWC-Net."""
