"""The .litertlm container: model, tokenizer and metadata in the one file LiteRT-LM opens."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.cache import write_error

_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?\+00:00")
_EPOCH = b"1970-01-01T00:00:00.000000+00:00"
_HEADER_BYTES = 16 * 1024


@dataclass(frozen=True)
class PackagedTokenizer:
    """A tokenizer as a LiteRT-LM file carries it.

    Args:
        kind: "sentencepiece" (a model proto) or "huggingface" (a tokenizer.json).
        data: The file's bytes.
        verified_texts: Texts on which it was compared with the checkpoint's tokenizer and found equal.
        reason: Why this kind, in words for the manifest.
    """

    kind: Literal["sentencepiece", "huggingface"]
    data: bytes
    verified_texts: int
    reason: str

    @property
    def file_name(self) -> str:
        return "tokenizer.model" if self.kind == "sentencepiece" else "tokenizer.json"

    def as_manifest(self) -> dict[str, object]:
        """What `Manifest.tokenizer` holds."""
        return {"kind": self.kind, "verified_texts": self.verified_texts, "reason": self.reason}


def pack_litertlm(out_path: Path, model_tflite: Path, tokenizer: PackagedTokenizer, llm_metadata: bytes) -> None:
    """Write a .litertlm file; it is whole and on disk when this returns.

    Args:
        out_path: Written beside itself first, then renamed.
        model_tflite: A decoder with `prefill_N` and `decode` signatures; copied block by block.
        tokenizer: From `choose_tokenizer`.
        llm_metadata: From `build_llm_metadata`.

    Raises:
        BudgetError: The disk is full.
        ToolkitError: The file cannot be written.
        FileNotFoundError: There is no model_tflite.
    """
    import litert_lm_builder

    builder = litert_lm_builder.LitertLmFileBuilder()
    builder.add_system_metadata(litert_lm_builder.Metadata(key="Authors", value="ondevice-toolkit", dtype=litert_lm_builder.DType.STRING))
    try:
        with tempfile.TemporaryDirectory(dir=out_path.parent, prefix=f".{out_path.name}.") as folder:
            metadata_path, tokenizer_path = Path(folder, "llm_metadata.pb"), Path(folder, tokenizer.file_name)
            metadata_path.write_bytes(llm_metadata)
            tokenizer_path.write_bytes(tokenizer.data)
            builder.add_llm_metadata(str(metadata_path))
            if tokenizer.kind == "sentencepiece":
                builder.add_sentencepiece_tokenizer(str(tokenizer_path))
            else:
                builder.add_hf_tokenizer(str(tokenizer_path))
            builder.add_tflite_model(str(model_tflite), litert_lm_builder.TfLiteModelType.PREFILL_DECODE)
            written = Path(folder, out_path.name)
            with written.open("wb") as stream:
                builder.build(stream, validate_metadata=True)
            _make_reproducible(written)
            written.replace(out_path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise write_error(out_path, error) from error


def _make_reproducible(path: Path) -> None:
    """Put a UUID derived from the content, and the epoch, where the builder wrote a random UUID and the time; then fsync.

    The same model, tokenizer and metadata then give the same file, so a bundle's hash can be checked by converting again.
    Both values keep their length; the header's layout does not change.
    """
    with path.open("r+b") as stream:
        header = stream.read(_HEADER_BYTES)
        content = hashlib.sha256()
        while block := stream.read(2**20):
            content.update(block)
        derived = str(uuid.UUID(bytes=content.digest()[:16], version=4)).encode()
        header = _UUID.sub(derived, header, count=1)
        header = _TIMESTAMP.sub(lambda found: _EPOCH.replace(b".000000", b"" if b"." not in found[0] else b".000000"), header)
        stream.seek(0)
        stream.write(header)
        stream.flush()
        os.fsync(stream.fileno())
