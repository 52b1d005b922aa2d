"""What runs in a process of Caffe."""
