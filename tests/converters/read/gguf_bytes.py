"""GGUF files written byte by byte, so that a test can lie about any of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items


def tensor(name: str, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@dataclass
class RawGguf:
    """The parts of a file; counts follow from them unless a test says otherwise."""

    keys: list[bytes] = field(default_factory=lambda: [key("general.architecture", 8, text("llama"))])
    tensors: list[bytes] = field(default_factory=lambda: [tensor("a", (8,)), tensor("b", (4, 2), offset=32)])
    data: bytes = bytes(64)
    magic: bytes = b"GGUF"
    version: int = 3
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys) + b"".join(self.keys) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data
