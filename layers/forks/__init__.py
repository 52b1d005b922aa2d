"""Layers that one fork of Caffe, or one family of forks, has. Nothing imports them by name but what is about that fork."""
