"""Names of checkpoints, taken from files, folders and sources, in a form that every file system takes."""

from __future__ import annotations

import re

ADAPTER_MARK = "#adapter="  # between a source and its adapter's folder, where one text must name both
ENCODERS_MARK = "#encoders=none"  # after a source whose vision and audio parts are left out
_STORAGE_SUFFIX = re.compile(r"[-._ ](I?Q\d\w*|BF16|F16|F32|FP16|MXFP4)$", re.IGNORECASE)


def checkpoint_name(stem: str) -> str:
    """Lower case and without the storage suffix: `X.Q4_1` and `X-Q4_K_M` are both `x`."""
    return re.sub(r"[^a-z0-9.]+", "-", _STORAGE_SUFFIX.sub("", stem).lower()).strip("-.") or "model"
