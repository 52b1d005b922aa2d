"""FlowNet 2's augmentation of images and flows, for DataAugmentation, FlowAugmentation and GenerateAugmentationParameters."""
