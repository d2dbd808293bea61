"""Quantizing with a model's own activations: codes and channel scales chosen on texts kept apart from verification."""
