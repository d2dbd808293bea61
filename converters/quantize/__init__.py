"""Quantization arithmetic in numpy, apart from any file format."""
