"""`break` and `continue` expressed by conditions, for a template engine that has neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import nodes

_FLAG = "loop_control"


def without_loop_controls(statements: Sequence[nodes.Node], note: Callable[[str], None]) -> list[nodes.Node]:
    """Rewrite the loops directly in a block; loops further inside are rewritten when their own block is written.

    `continue` moves what follows it into the branches that do not reach it. `break` sets a flag in a namespace made before the loop,
    and the loop's body then runs only while the flag is unset. The rest of an iteration list is still walked, without effect.

    Args:
        statements: A block's statements.
        note: Told once for each loop that was changed.
    """
    from jinja2 import nodes

    written: list[nodes.Node] = []
    for statement in statements:
        if isinstance(statement, nodes.For) and _contains(statement.body, (nodes.Break, nodes.Continue)):
            note("loop controls became conditions")
            flag = f"{_FLAG}_{statement.lineno}"
            has_break = _contains(statement.body, (nodes.Break,))
            body = _lowered(list(statement.body), flag)
            if has_break:
                namespace = nodes.Call(nodes.Name("namespace", "load"), [], [nodes.Keyword("is_over", nodes.Const(False))], None, None)
                written.append(nodes.Assign(nodes.Name(flag, "store"), namespace, lineno=statement.lineno))
                is_running = nodes.Not(nodes.Getattr(nodes.Name(flag, "load"), "is_over", "load"))
                body = [nodes.If(is_running, body, [], [], lineno=statement.lineno)]
            written.append(
                nodes.For(
                    statement.target, statement.iter, body, statement.else_, statement.test, statement.recursive, lineno=statement.lineno
                )
            )
        else:
            written.append(statement)
    return written


def _contains(statements: Sequence[nodes.Node], kinds: tuple[type[Any], ...]) -> bool:
    """Whether a control of these kinds belongs to the loop whose body this is, not to a loop inside it."""
    from jinja2 import nodes

    for statement in statements:
        if isinstance(statement, kinds):
            return True
        if isinstance(statement, nodes.If) and any(_contains(branch, kinds) for branch in _branches(statement)):
            return True
    return False


def _branches(node: nodes.If) -> list[list[nodes.Node]]:
    return [node.body, *(branch.body for branch in node.elif_), node.else_]


def _lowered(statements: list[nodes.Node], flag: str) -> list[nodes.Node]:
    from jinja2 import nodes

    for index, statement in enumerate(statements):
        if isinstance(statement, nodes.Continue):
            return statements[:index]
        if isinstance(statement, nodes.Break):
            stop = nodes.Assign(nodes.NSRef(flag, "is_over"), nodes.Const(True), lineno=statement.lineno)
            return [*statements[:index], stop]
        if isinstance(statement, nodes.If) and _contains([statement], (nodes.Break, nodes.Continue)):
            rest = statements[index + 1 :]
            body, *others, otherwise = (_lowered([*branch, *rest], flag) for branch in _branches(statement))
            elifs = [nodes.If(branch.test, lowered, [], []) for branch, lowered in zip(statement.elif_, others, strict=True)]
            return [*statements[:index], nodes.If(statement.test, body, elifs, otherwise, lineno=statement.lineno)]
    return statements
