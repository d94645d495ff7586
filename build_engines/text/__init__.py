"""Models for texts: labelled texts → TF-IDF and a linear model → ONNX → a judged entry of the model repository."""

from build_engines.text.build import TextOrder, build_samples, build_text

__all__ = ["TextOrder", "build_samples", "build_text"]
