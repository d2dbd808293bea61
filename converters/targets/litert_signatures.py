"""Signatures derived from lowered ones: a prefill is a score signature that returns no logits.

Tracing and lowering one signature of SmolLM2 takes half a minute; copying its lowered function takes none.
"""

from __future__ import annotations

from typing import Any

_NAME, _EXPORTED, _ENTRY = "sym_name", "tf_saved_model.exported_names", "tf.entry_function"
_RESULTS, _TYPE, _INDEX_PATH = "res_attrs", "function_type", "tf_saved_model.index_path"


def add_signature_without(module: Any, *, source: str, output: str, name: str) -> None:
    """Add to a lowered module a copy of signature `source` that neither returns `output` nor works it out.

    Args:
        module: The `builtin.module` operation after all of litert-torch's passes. The copy comes before `source`.
        source: Name of a signature in it.
        output: One of its outputs, as the signature calls it.
        name: Name of the new signature.

    Raises:
        ValueError: There is no such signature, or it has no such output.
    """
    from litert_converter.mlir import ir

    with module.context, ir.Location.unknown():
        functions = [operation.operation for operation in module.regions[0].blocks[0].operations]
        original = next((function for function in functions if _symbol(function) == source), None)
        if original is None:
            raise ValueError(f"the module has no signature {source}")
        names = _output_names(original)
        if output not in names:
            raise ValueError(f"signature {source} has no output {output}; it has {', '.join(names)}")
        copy = original.clone(ip=ir.InsertionPoint(original))
        _return_without(copy, names.index(output))
        _rename(copy, source, name, kept=[each for each in names if each != output])


def _symbol(function: Any) -> str | None:
    return function.attributes[_NAME].value if _NAME in function.attributes else None


def _output_names(function: Any) -> list[str]:
    return [entry[_INDEX_PATH][0].value for entry in function.attributes[_RESULTS]]


def _return_without(function: Any, index: int) -> None:
    """Drop one returned value, then everything that only it needed."""
    from litert_converter.mlir import ir

    block = function.regions[0].blocks[0]
    operations = [operation.operation for operation in block.operations]
    leave = operations.pop()
    returned = [value for position, value in enumerate(leave.operands) if position != index]
    block.append(ir.Operation.create(leave.name, operands=returned))
    leave.erase()
    for operation in reversed(operations):
        if operation.results and not any(_is_used(result) for result in operation.results):
            operation.erase()
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], [value.type for value in returned])
    function.attributes[_TYPE] = ir.TypeAttr.get(kind)


def _is_used(value: Any) -> bool:
    return next(iter(value.uses), None) is not None


def _rename(function: Any, source: str, name: str, *, kept: list[str]) -> None:
    """Give every attribute that holds the signature's name the new one, and list only the outputs that are left."""
    from litert_converter.mlir import ir

    function.attributes[_NAME] = ir.StringAttr.get(name)
    function.attributes[_EXPORTED] = ir.ArrayAttr.get([ir.StringAttr.get(name)])
    paths = [{_INDEX_PATH: ir.ArrayAttr.get([ir.StringAttr.get(output)])} for output in kept]
    function.attributes[_RESULTS] = ir.ArrayAttr.get([ir.DictAttr.get(path) for path in paths])
    entry = function.attributes[_ENTRY]
    inputs = [f"{name}{text.removeprefix(source)}" for text in entry["inputs"].value.split(",")]
    entries = {"inputs": ",".join(inputs), "outputs": ",".join(f"{name}_{output}_output" for output in kept)}
    function.attributes[_ENTRY] = ir.DictAttr.get({key: ir.StringAttr.get(text) for key, text in entries.items()})
