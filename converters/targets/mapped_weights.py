"""A torch model whose weights stay on disk: its parameters are views of the mapped safetensors file.

Lowering reads each weight a few times and writing the graph needs twice their size beside them. Mapped weights cost memory
only while they are looked at: pages are handed back to the system all along, and read again from its cache when needed.
"""

from __future__ import annotations

import mmap
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HAND_BACK_SECONDS = 0.2


def map_weights(model: Any, file: Path) -> mmap.mmap | None:
    """Point the parameters of a torch model at a float32 safetensors file with the same names.

    Args:
        model: Parameters whose name, dtype and shape are not in the file keep their own memory.
        file: One file, written by `Checkpoint.write_hf`.

    Returns:
        The mapping, for `kept_on_disk`. None where the system cannot hand back mapped pages, and nothing was changed.
    """
    import torch

    from converters.read.safetensors_header import read_safetensors_header

    if sys.platform != "linux":
        return None
    with file.open("rb") as stream:
        mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    header = read_safetensors_header(file)
    for name, parameter in model.named_parameters():
        entry = header.get(name)
        if entry is None or entry.dtype != "F32" or entry.shape != tuple(parameter.shape):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the buffer is writable, but torch cannot see that it is private
            flat = torch.frombuffer(mapping, dtype=torch.float32, count=parameter.numel(), offset=entry.offset)
        parameter.data = flat.view(entry.shape)
    return mapping


@contextmanager
def kept_on_disk(mapping: mmap.mmap | None) -> Iterator[None]:
    """Hand the mapping's pages back five times a second. Nobody may write to it meanwhile: a change would be undone."""
    if mapping is None:
        yield
        return
    done = threading.Event()

    def hand_back() -> None:
        while not done.wait(HAND_BACK_SECONDS):
            mapping.madvise(mmap.MADV_DONTNEED)

    thread = threading.Thread(target=hand_back, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
