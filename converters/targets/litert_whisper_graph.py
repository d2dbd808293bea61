"""Whisper as two PyTorch modules that lower well to LiteRT: sound to the decoder's cross-attention cache, and one decoder step.

Arranged for the CPU runtime:
- the spectrum is a convolution over blocks of 80 samples (a frame is five, a hop two), since LiteRT's FFT takes no such length;
- the step returns only its own keys and values, a few KB that the caller writes into the cache: nothing the size of the cache is copied;
- what attention multiplies by a single query stands on the left of its product (cross values are stored transposed), because
  the runtime repacks every right-hand side it does not know in advance;
- the likeliest text token and the normalizer of the distribution are worked out in the graph, so that no caller has to walk
  the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from converters.whisper_spec import FRAME_LENGTH, HOP_LENGTH, WhisperSpec
from toolkit.speech.log_mel import DECADES, FLOOR, N_BINS, hann_window, mel_filters

BLOCK = 80  # divides both frame and hop
MASKED = -1.0e9
LAYER_NORM_EPS = 1e-5
QUERY_CHUNKS = 3  # encoder attention is taken in parts, so that its scores take a third of the memory
Cache = dict[str, Tensor]


class LogMel(nn.Module):
    """(1, n_samples) sound to (1, n_mels, n_frames); the arithmetic of `toolkit.speech.log_mel`."""

    basis: Tensor
    filters: Tensor

    def __init__(self, spec: WhisperSpec) -> None:
        super().__init__()
        self.n_frames, self.n_blocks = spec.n_frames, (spec.n_samples + FRAME_LENGTH) // BLOCK
        self.register_buffer("basis", torch.from_numpy(spectrum_basis()))
        self.register_buffer("filters", torch.from_numpy(mel_filters(spec.n_mels).astype(np.float32)))

    def forward(self, waveform: Tensor) -> Tensor:
        """Each bin's real and imaginary part by one convolution, then power, mel bands and their logarithm."""
        padded = functional.pad(waveform[:, None], (FRAME_LENGTH // 2, FRAME_LENGTH // 2), mode="reflect")
        blocks = padded.reshape(1, self.n_blocks, BLOCK).transpose(1, 2)
        spectrum = functional.conv1d(blocks, self.basis, stride=HOP_LENGTH // BLOCK)[:, :, : self.n_frames]
        power = spectrum[:, :N_BINS] ** 2 + spectrum[:, N_BINS:] ** 2
        bands = torch.log(torch.clamp(torch.matmul(self.filters, power), min=FLOOR)) * (1 / math.log(10))
        bands = torch.maximum(bands, torch.amax(bands, dim=(1, 2), keepdim=True) - DECADES)
        return (bands + 4.0) / 4.0


def spectrum_basis() -> np.ndarray:
    """(2 * 201, 80, 5) float32: windowed cosines and negative sines of each bin, cut into blocks of 80 samples."""
    angles = 2 * np.pi * np.outer(np.arange(N_BINS), np.arange(FRAME_LENGTH)) / FRAME_LENGTH
    waves = np.concatenate([np.cos(angles), -np.sin(angles)]) * hann_window()
    return np.ascontiguousarray(waves.reshape(2 * N_BINS, FRAME_LENGTH // BLOCK, BLOCK).transpose(0, 2, 1).astype(np.float32))


class Weights(nn.Module):
    """A checkpoint's tensors under their own names, and the layers that use them."""

    def __init__(self, spec: WhisperSpec, tensors: Mapping[str, Tensor], prefix: str) -> None:
        super().__init__()
        self.spec = spec
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                self.register_buffer(name.replace(".", "_"), tensor)

    def tensor(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name.replace(".", "_"))
        return found

    def linear(self, name: str, x: Tensor) -> Tensor:
        bias = None if name.endswith("k_proj") else self.tensor(f"{name}.bias")
        return functional.linear(x, self.tensor(f"{name}.weight"), bias)

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias")
        return functional.layer_norm(x, (self.spec.hidden_size,), weight, bias, LAYER_NORM_EPS)

    def mlp(self, layer: str, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.linear(f"{layer}fc1", self.norm(f"{layer}final_layer_norm", x)))
        return x + self.linear(f"{layer}fc2", hidden)


def heads(x: Tensor, n_heads: int) -> Tensor:
    """(1, n, hidden_size) to (1, n_heads, n, head_dim)."""
    return x.reshape(1, x.shape[1], n_heads, x.shape[2] // n_heads).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    """The inverse of `heads`."""
    return x.transpose(1, 2).reshape(1, x.shape[2], x.shape[1] * x.shape[3])


class Encoder(nn.Module):
    """Sound to the keys and values that every decoder step attends to, which need the decoder's own projections."""

    def __init__(self, spec: WhisperSpec, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec, self.log_mel = spec, LogMel(spec)
        self.encoder = Weights(spec, tensors, "model.encoder.")
        cross = {name: tensor for name, tensor in tensors.items() if ".encoder_attn.k_proj." in name or ".encoder_attn.v_proj." in name}
        self.cross = Weights(spec, cross, "model.decoder.")

    def forward(self, waveform: Tensor) -> dict[str, Any]:
        """Returns log_mel (1, n_mels, n_frames) and, for each decoder layer, cross.k_i (1, heads, n, d) and cross.v_i (1, heads, d, n)."""
        mel = self.log_mel(waveform)
        states = self.encode(mel)
        n_heads = self.spec.decoder.n_heads
        cross: Cache = {}
        for index in range(self.spec.decoder.n_layers):
            name = f"model.decoder.layers.{index}.encoder_attn."
            cross[f"k_{index}"] = heads(self.cross.linear(f"{name}k_proj", states), n_heads)
            cross[f"v_{index}"] = heads(self.cross.linear(f"{name}v_proj", states), n_heads).transpose(2, 3)
        return {"log_mel": mel, "cross": cross}

    def encode(self, mel: Tensor) -> Tensor:
        """(1, n_audio_positions, hidden_size)."""
        weights = self.encoder
        conv = {name: weights.tensor(f"model.encoder.{name}") for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias")}
        x = functional.gelu(functional.conv1d(mel, conv["conv1.weight"], conv["conv1.bias"], padding=1))
        x = functional.gelu(functional.conv1d(x, conv["conv2.weight"], conv["conv2.bias"], stride=2, padding=1))
        x = x.transpose(1, 2) + weights.tensor("model.encoder.embed_positions.weight")
        for index in range(self.spec.encoder.n_layers):
            layer = f"model.encoder.layers.{index}."
            normed = weights.norm(f"{layer}self_attn_layer_norm", x)
            x = x + weights.linear(f"{layer}self_attn.out_proj", self._attend(f"{layer}self_attn.", normed))
            x = weights.mlp(layer, x)
        return weights.norm("model.encoder.layer_norm", x)

    def _attend(self, name: str, x: Tensor) -> Tensor:
        n_heads = self.spec.encoder.n_heads
        scale = (self.spec.hidden_size // n_heads) ** -0.5
        query, key, value = (heads(self.encoder.linear(f"{name}{kind}_proj", x), n_heads) for kind in "qkv")
        query, transposed = query * scale, key.transpose(2, 3)
        step = -(-x.shape[1] // QUERY_CHUNKS)
        parts = [query[:, :, start : start + step] for start in range(0, x.shape[1], step)]
        return joined(torch.cat([torch.softmax(part @ transposed, -1) @ value for part in parts], 2))


class DecoderStep(nn.Module):
    """One token in, the distribution of the next one out."""

    never_text: Tensor

    def __init__(self, spec: WhisperSpec, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.spec, self.weights = spec, Weights(spec, tensors, "model.decoder.")
        self.register_buffer("never_text", torch.from_numpy(never_text(spec)))

    def forward(self, token: Tensor, position: Tensor, past: Cache, cross: Cache) -> dict[str, Any]:
        """One step.

        Args:
            token: (1, 1) int32.
            position: (1,) int32: how many tokens the cache holds.
            past: k_i and v_i, (1, heads, max_context_length, head_dim) of each layer; rows from `position` on are not looked at.
            cross: As `Encoder` returns it.

        Returns:
            logits (1, vocab_size); text_token (1,) int32, the likeliest token that is text and not suppressed; log_total
            (1,), the logarithm of the sum of exp(logits); new.k_i and new.v_i (1, heads, 1, head_dim), to be written at `position`.
        """
        weights, new = self.weights, Cache()
        table = weights.tensor("model.decoder.embed_tokens.weight")
        x = functional.embedding(token, table)
        x = x + torch.index_select(weights.tensor("model.decoder.embed_positions.weight"), 0, position)[None]
        places = torch.arange(self.spec.max_context_length, dtype=torch.int32)
        mask = torch.where(places < position, 0.0, MASKED)[None, None, :, None]
        for index in range(self.spec.decoder.n_layers):
            layer = f"model.decoder.layers.{index}."
            x = x + self._attend_past(f"{layer}self_attn", x, index, past, new, mask)
            x = x + self._attend_sound(f"{layer}encoder_attn", x, index, cross)
            x = weights.mlp(layer, x)
        logits = functional.linear(weights.norm("model.decoder.layer_norm", x), table)[:, 0]
        top = torch.amax(logits, -1, keepdim=True)
        log_total = torch.log(torch.sum(torch.exp(logits - top), -1)) + top[:, 0]
        text_token = torch.argmax(logits + self.never_text, -1).to(torch.int32)
        return {"logits": logits, "text_token": text_token, "log_total": log_total, "new": new}

    def _query(self, name: str, x: Tensor) -> Tensor:
        """The scaled query as a column, (1, heads, head_dim, 1)."""
        n_heads, head_dim = self.spec.decoder.n_heads, self.spec.head_dim
        scale: float = head_dim**-0.5
        return (self.weights.linear(f"{name}.q_proj", x) * scale).reshape(1, n_heads, head_dim, 1)

    def _attend_past(self, name: str, x: Tensor, index: int, past: Cache, new: Cache, mask: Tensor) -> Tensor:
        """Attend to the cache and to the token itself, whose key and value are not in the cache yet."""
        n_heads, head_dim = self.spec.decoder.n_heads, self.spec.head_dim
        x = self.weights.norm(f"{name}_layer_norm", x)
        query = self._query(name, x)
        key, value = (self.weights.linear(f"{name}.{kind}_proj", x).reshape(1, n_heads, 1, head_dim) for kind in "kv")
        new[f"k_{index}"], new[f"v_{index}"] = key, value
        scores = torch.cat([past[f"k_{index}"] @ query + mask, key @ query], 2)  # (1, heads, n + 1, 1)
        shares = torch.softmax(scores.reshape(1, n_heads, 1, -1), -1)
        mixed = shares[..., :-1] @ past[f"v_{index}"] + shares[..., -1:] * value
        return self.weights.linear(f"{name}.out_proj", mixed.reshape(1, 1, n_heads * head_dim))

    def _attend_sound(self, name: str, x: Tensor, index: int, cross: Cache) -> Tensor:
        n_heads = self.spec.decoder.n_heads
        query = self._query(name, self.weights.norm(f"{name}_layer_norm", x))
        scores = (cross[f"k_{index}"] @ query).reshape(1, n_heads, 1, -1)
        shares = torch.softmax(scores, -1).reshape(1, n_heads, -1, 1)
        mixed = cross[f"v_{index}"] @ shares  # (1, heads, head_dim, 1)
        return self.weights.linear(f"{name}.out_proj", mixed.reshape(1, 1, self.spec.hidden_size))


def never_text(spec: WhisperSpec) -> np.ndarray:
    """(1, vocab_size) float32: 0 for text that may be said, `MASKED` for suppressed, special and timestamp tokens."""
    bias = np.zeros((1, spec.vocab_size), np.float32)
    bias[0, spec.tokens.end_of_text :] = MASKED
    bias[0, list(spec.tokens.suppressed)] = MASKED
    return bias


def step_inputs(spec: WhisperSpec, cross: Cache) -> dict[str, Any]:
    """Sample inputs of a step. Every tensor is one of its own: the converter merges inputs that are the same object."""
    shape = (1, spec.decoder.n_heads, spec.max_context_length, spec.head_dim)
    past = {f"{kind}_{index}": torch.zeros(shape) for index in range(spec.decoder.n_layers) for kind in "kv"}
    return {
        "token": torch.tensor([[spec.tokens.start_of_transcript]], dtype=torch.int32),
        "position": torch.tensor([0], dtype=torch.int32),
        "past": past,
        "cross": {name: tensor.clone() for name, tensor in cross.items()},
    }
