"""What litert-torch's Gemma 4 needs before it is loaded."""

from __future__ import annotations


def allow_experts_to_be_set() -> None:
    """Let transformers make litert-torch's Gemma 4, dense as it is.

    transformers asks the source of a model's own module whether it may set how experts are computed, and refuses a model that
    says no. litert-torch's class lies in a module of its own. Asked first, the original remembers its answer where that class
    inherits it.
    """
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextModel

    Gemma4TextModel._can_set_experts_implementation()
