"""Quantizing a float .tflite with ai-edge-quantizer, and proving that the file holds what the recipe says.

A recipe becomes rules of the quantizer, most general first (a later rule overrides an earlier one). What the quantizer
is known to get wrong without a word is refused here by name; docs/formats/recipe.md lists it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.rule import Activations, Algorithm, Granularity, Rule
from converters.targets.litert_float16 import cast_to_float16

ALGORITHMS = {
    Algorithm.CAST: "float_casting",
    Algorithm.ROUND: "min_max_uniform_quantize",
    Algorithm.HADAMARD: "DECOMPOSED_HADAMARD_ROTATION",
    Algorithm.OCTAV: "OCTAV",
}
GROUP_SIZES = (32, 64, 128, 256)
# Channels rotated together. Larger blocks are no more faithful (KL .0071 at 64, .0087 at 32, .0072 at 2048 on Gemma 3 270M) and cost time.
ROTATION_SIZE = 64
OPERATIONS = {"embedding": "EMBEDDING_LOOKUP", "linear": "FULLY_CONNECTED"}


def refusal(rule: Rule) -> str:
    """Why LiteRT cannot be given this rule; empty if it can."""
    if rule.is_float:
        return ""
    if rule.algorithm not in ALGORITHMS:
        return f"the algorithm {rule.algorithm} is not there for LiteRT"
    if rule.bits not in (4, 8):
        return f"{rule.bits}-bit weights: the file is written, then the runtime cannot allocate it"
    if not rule.is_symmetric:
        return "affine weights: LiteRT's integer kernels take symmetric ones only"
    if rule.granularity is Granularity.TENSOR:
        return "one scale for a whole tensor: LiteRT's kernels take one a channel or a group"
    if rule.granularity is Granularity.BLOCKWISE and (rule.bits != 4 or rule.group_size not in GROUP_SIZES):
        sizes = ", ".join(map(str, GROUP_SIZES))
        return f"{rule.bits}-bit groups of {rule.group_size}: only 4 bits in groups of {sizes} are written, others silently stay float"
    if rule.activations is not Activations.INT8_DYNAMIC:
        return "integer weights with float activations decode five times slower and are not packed by the runtime"
    return ""


def quantizer_recipe(rules: Mapping[str, Rule]) -> list[dict[str, Any]]:
    """ai-edge-quantizer's recipe for rules by tensor class; empty for float32, which is written as it is.

    The head is a FULLY_CONNECTED like every linear and has no name of its own in the graph, so it shares their rule.

    Raises:
        ValueError: Head and linears have different rules.
    """
    linear = rules["linear"]
    if rules["head"] != linear:
        raise ValueError("the head is a linear layer of the graph like any other, so [rules.head] must equal [rules.linear]")
    if linear.bits == 32:
        return []
    general = quantizer_entry("*", linear)
    lookup = quantizer_entry(OPERATIONS["embedding"], rules["embedding"])
    return [general] if lookup | {"operation": "*"} == general else [general, lookup]


def quantizer_entry(operation: str, rule: Rule) -> dict[str, Any]:
    """One rule of the quantizer, for an operation or for all (`*`)."""
    if rule.is_float:
        weight: dict[str, Any] = {"num_bits": rule.bits, "symmetric": True, "granularity": "TENSORWISE", "dtype": "FLOAT"}
        config = {"compute_precision": "FLOAT", "explicit_dequantize": True}
    else:
        granularity = f"BLOCKWISE_{rule.group_size}" if rule.granularity is Granularity.BLOCKWISE else "CHANNELWISE"
        weight = {"num_bits": rule.bits, "symmetric": rule.is_symmetric, "granularity": granularity, "dtype": "INT"}
        if rule.algorithm is Algorithm.HADAMARD:
            weight["algorithm_params"] = {"max_hadamard_size": ROTATION_SIZE}
        config = {"compute_precision": "INTEGER", "explicit_dequantize": False}
    return {
        "regex": ".*",
        "operation": operation,
        "algorithm_key": ALGORITHMS[rule.algorithm],
        "op_config": {"weight_tensor_config": weight, "skip_checks": False, "min_weight_elements": 0, **config},
    }


def quantize_file(model: str, recipe: list[dict[str, Any]], out: str) -> dict[str, Any]:
    """Write `out`, the quantized `model`. An empty recipe links or copies the float file. Meant for a child process.

    Returns:
        {"model": path, "bytes": size}.
    """
    import os
    import shutil

    if not recipe:
        try:
            os.link(model, out)
        except OSError:
            shutil.copyfile(model, out)
    elif all(entry["algorithm_key"] == ALGORITHMS[Algorithm.CAST] for entry in recipe):
        cast_to_float16(Path(model), Path(out))
    else:
        from ai_edge_quantizer import quantizer

        run = quantizer.Quantizer(model)
        run.load_quantization_recipe(recipe)
        run.quantize().export_model(out, overwrite=True)
    return {"model": out, "bytes": Path(out).stat().st_size}
