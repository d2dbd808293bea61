"""Taking the model back out of a `.litertlm` file, to measure what was published."""

from __future__ import annotations

import io
from pathlib import Path

from toolkit.errors import FormatError

_COPY_BYTES = 2**22


def extract_tflite(container: Path, out: Path) -> Path:
    """Copy the TFLite model section of a `.litertlm` file, block by block.

    Args:
        container: Its hash must have been checked.
        out: File to write.

    Raises:
        FormatError: There is no model section, or it reaches past the end of the file.
    """
    from litert_lm_builder import litertlm_header_schema_py_generated as schema
    from litert_lm_builder import litertlm_peek

    try:
        header = litertlm_peek.read_litertlm_header(str(container), io.StringIO())
        sections = header.SectionMetadata()
        objects = [sections.Objects(index) for index in range(sections.ObjectsLength())]
        models = [item for item in objects if item.DataType() == schema.AnySectionDataType.TFLiteModel]
        begin, end = models[0].BeginOffset(), models[0].EndOffset()
    except (ValueError, IndexError, AttributeError) as error:
        raise _damaged(container, f"no model section can be found in it ({error})") from error
    size = container.stat().st_size
    if not 0 < begin < end <= size:
        raise _damaged(container, f"its model section spans bytes {begin} to {end} of {size}")
    with container.open("rb") as source, out.open("wb") as target:
        source.seek(begin)
        left = end - begin
        while left and (piece := source.read(min(left, _COPY_BYTES))):
            target.write(piece)
            left -= len(piece)
    return out


def _damaged(container: Path, why: str) -> FormatError:
    return FormatError(f"{container} is no LiteRT-LM file with a model", why=why, fix="check the bundle with: toolkit verify BUNDLE")
