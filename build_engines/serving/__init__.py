"""The programs that serve an ONNX network on the CPU, in Triton's Python backend.

The builder copies `model.py` and one of the engines, as `engine.py`, beside `model.onnx`; so they import nothing
of the project.
"""
