"""Tidegate: an HTTP gate in front of NVIDIA Triton. Photos in, labels out, never a made-up label."""

__version__ = "0.1.0"
