"""Lowering Whisper to one float .tflite, in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FLOAT_MODEL = "model.tflite"
ENCODE, DECODE = "encode", "decode"


def export_whisper(hf_dir: str, spec: str, out_dir: str) -> dict[str, Any]:
    """Write `model.tflite` with the signatures `encode` and `decode` (docs/formats/whisper.md).

    Args:
        hf_dir: Directory with the float32 model.safetensors.
        spec: `WhisperSpec.as_dict` as JSON.
        out_dir: Existing folder.

    Returns:
        {"model": path}.
    """
    import torch
    from litert_torch._convert import interface
    from safetensors.torch import load_file

    from converters.targets.litert_whisper_graph import DecoderStep, Encoder, step_inputs
    from converters.whisper_spec import WhisperSpec

    whisper = WhisperSpec.from_dict(json.loads(spec))
    tensors = load_file(str(Path(hf_dir) / "model.safetensors"))
    encoder, decoder = Encoder(whisper, tensors).eval(), DecoderStep(whisper, tensors).eval()
    sound = torch.zeros(1, whisper.n_samples)
    with torch.inference_mode():
        cross = encoder(sound)["cross"]
    converter = interface.Converter()
    converter.add_signature(ENCODE, encoder, sample_kwargs={"waveform": sound})
    converter.add_signature(DECODE, decoder, sample_kwargs=step_inputs(whisper, {name: tensor.clone() for name, tensor in cross.items()}))
    path = Path(out_dir) / FLOAT_MODEL
    converter.convert(lightweight_conversion=True, strict_export=False).export(str(path))
    return {"model": str(path)}
