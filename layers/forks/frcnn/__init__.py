"""Faster R-CNN in C++: makefile's and D-X-Y's forks."""
