"""A chat template rewritten in the Jinja the LiteRT-LM runtime speaks.

Checkpoints write templates for Python's jinja2, whose strings have Python's methods. The runtime renders with minijinja,
after replacing some method calls by text substitution (inside string constants too), and with a test `none` that asks for
undefined. Here a template is parsed by jinja2 with the settings of `apply_chat_template`, and each node is written out again
in constructs that mean the same in the runtime. All whitespace that is output stands in string constants, so no setting of
whitespace control matters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from converters.loop_controls import without_loop_controls
from toolkit.errors import FormatError

if TYPE_CHECKING:
    from jinja2 import nodes

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "And": "and", "Or": "or"}
_COMPARE = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "in": "in", "notin": "not in"}
_SAME_NAMED_FILTERS = ("upper", "lower", "title", "capitalize", "lstrip", "rstrip")
_SUBSTITUTED_BY_RUNTIME = re.compile(r"\.(?=(?:split|[lr]?strip|join|startswith|endswith|replace|items)\()")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def parse_template(template: str) -> nodes.Template:
    """Parse as `apply_chat_template` does: trimmed blocks, loop controls, `{% generation %}` ignored.

    Raises:
        FormatError: jinja2 refuses it.
    """
    from jinja2 import Environment, TemplateError, TemplateSyntaxError
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    try:
        return environment.parse(template)
    except TemplateSyntaxError as error:
        raise _invalid(f"line {error.lineno}: {error.message}") from error
    except TemplateError as error:
        raise _invalid(str(error)) from error
    except RecursionError as error:
        raise _invalid("its expressions are nested too deep") from error


def write_template(template: nodes.Template, *, notes: list[str]) -> str:
    """Write a parsed template in the runtime's dialect, one statement a line.

    Args:
        template: From `parse_template`.
        notes: Each kind of change is appended once, in words.

    Raises:
        FormatError: The template uses a statement the runtime has no counterpart for (include, extends, import, block).
    """
    try:
        return "\n".join(_Writer(notes).block(template.body))
    except RecursionError as error:
        raise _invalid("its statements or expressions are nested too deep") from error


def quoted(text: str) -> str:
    """A string constant that neither minijinja nor the runtime's text substitutions read as anything else."""
    escaped = "".join(_ESCAPES.get(c, c if c.isprintable() or ord(c) > 0xFFFF else f"\\u{ord(c):04x}") for c in text)
    escaped = _SUBSTITUTED_BY_RUNTIME.sub(lambda _: "\\x2e", escaped)
    return '"' + escaped.replace("{%", "{\\x25").replace("{{", "{\\x7b").replace("{#", "{\\x23") + '"'


class _Writer:
    """Statements become lists of lines, expressions become strings, each compound one in parentheses."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def block(self, statements: Sequence[nodes.Node]) -> list[str]:
        lines: list[str] = []
        for statement in without_loop_controls(statements, self._note):
            write = getattr(self, f"_write_{type(statement).__name__.lower()}", None)
            if write is None:
                raise _untranslatable(f"statement {type(statement).__name__.lower()!r}", statement.lineno)
            lines += write(statement)
        return lines

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    # Statements

    def _write_output(self, node: nodes.Output) -> list[str]:
        return [f"{{{{- {self.expression(child)} -}}}}" for child in node.nodes]

    def _write_if(self, node: nodes.If) -> list[str]:
        lines = [f"{{%- if {self.expression(node.test)} -%}}", *_indented(self.block(node.body))]
        for branch in node.elif_:
            lines += [f"{{%- elif {self.expression(branch.test)} -%}}", *_indented(self.block(branch.body))]
        if node.else_:
            lines += ["{%- else -%}", *_indented(self.block(node.else_))]
        return [*lines, "{%- endif -%}"]

    def _write_for(self, node: nodes.For) -> list[str]:
        test = f" if {self.expression(node.test)}" if node.test else ""
        recursive = " recursive" if node.recursive else ""
        lines = [f"{{%- for {self._target(node.target)} in {self.expression(node.iter)}{test}{recursive} -%}}"]
        lines += _indented(self.block(node.body))
        if node.else_:
            lines += ["{%- else -%}", *_indented(self.block(node.else_))]
        return [*lines, "{%- endfor -%}"]

    def _write_assign(self, node: nodes.Assign) -> list[str]:
        return [f"{{%- set {self._target(node.target)} = {self.expression(node.node)} -%}}"]

    def _write_assignblock(self, node: nodes.AssignBlock) -> list[str]:
        applied = self._filters_of(node.filter) if node.filter else ""
        return [f"{{%- set {self._target(node.target)}{applied} -%}}", *_indented(self.block(node.body)), "{%- endset -%}"]

    def _write_filterblock(self, node: nodes.FilterBlock) -> list[str]:
        return [f"{{%- filter {self._filters_of(node.filter)[3:]} -%}}", *_indented(self.block(node.body)), "{%- endfilter -%}"]

    def _write_with(self, node: nodes.With) -> list[str]:
        bound = ", ".join(f"{self._target(name)} = {self.expression(value)}" for name, value in zip(node.targets, node.values, strict=True))
        return [f"{{%- with {bound} -%}}", *_indented(self.block(node.body)), "{%- endwith -%}"]

    def _write_macro(self, node: nodes.Macro) -> list[str]:
        return [f"{{%- macro {node.name}({self._parameters(node)}) -%}}", *_indented(self.block(node.body)), "{%- endmacro -%}"]

    def _write_callblock(self, node: nodes.CallBlock) -> list[str]:
        call = self.expression(node.call)
        return [f"{{%- call({self._parameters(node)}) {call} -%}}", *_indented(self.block(node.body)), "{%- endcall -%}"]

    def _parameters(self, node: nodes.Macro | nodes.CallBlock) -> str:
        n_plain = len(node.args) - len(node.defaults)
        plain = [argument.name for argument in node.args[:n_plain]]
        return ", ".join(
            plain + [f"{a.name}={self.expression(value)}" for a, value in zip(node.args[n_plain:], node.defaults, strict=True)]
        )

    def _target(self, node: nodes.Node) -> str:
        kind = type(node).__name__
        if kind == "Tuple":
            return ", ".join(self._target(item) for item in node.items)  # type: ignore[attr-defined]
        return f"{node.name}.{node.attr}" if kind == "NSRef" else str(node.name)  # type: ignore[attr-defined]

    def _filters_of(self, node: nodes.Filter | None) -> str:
        """` | a | b(1)` of a filter chain whose innermost operand is the block itself."""
        return "" if node is None else f"{self._filters_of(node.node)} | {node.name}{self._arguments(node, optional=True)}"  # type: ignore[arg-type]

    # Expressions

    def expression(self, node: nodes.Node) -> str:
        kind = type(node).__name__
        if kind in _BINARY:
            return self._binary(node, kind)
        read = getattr(self, f"_read_{kind.lower()}", None)
        if read is None:
            raise _untranslatable(f"expression {kind.lower()!r}", node.lineno)
        return str(read(node))

    def _binary(self, node: Any, kind: str) -> str:
        left, right = self.expression(node.left), self.expression(node.right)
        if kind == "Mod" and type(node.left).__name__ == "Const" and isinstance(node.left.value, str):
            self._note("'%' formatting became the format filter")
            items = node.right.items if type(node.right).__name__ == "Tuple" else [node.right]
            return f"({left}|format({', '.join(map(self.expression, items))}))"
        return f"({left} {_BINARY[kind]} {right})"

    def _read_templatedata(self, node: nodes.TemplateData) -> str:
        return quoted(node.data)

    def _read_const(self, node: nodes.Const) -> str:
        if isinstance(node.value, str):
            return quoted(node.value)
        named = {True: "true", False: "false", None: "none"}
        return named[node.value] if node.value is None or isinstance(node.value, bool) else repr(node.value)

    def _read_name(self, node: nodes.Name) -> str:
        return {"True": "true", "False": "false", "None": "none"}.get(node.name, node.name)

    def _read_list(self, node: nodes.List) -> str:
        return f"[{', '.join(map(self.expression, node.items))}]"

    def _read_tuple(self, node: nodes.Tuple) -> str:
        return f"[{', '.join(map(self.expression, node.items))}]"

    def _read_dict(self, node: nodes.Dict) -> str:
        return "{" + ", ".join(f"{self.expression(pair.key)}: {self.expression(pair.value)}" for pair in node.items) + "}"

    def _read_condexpr(self, node: nodes.CondExpr) -> str:
        otherwise = f" else {self.expression(node.expr2)}" if node.expr2 else ""
        return f"({self.expression(node.expr1)} if {self.expression(node.test)}{otherwise})"

    def _read_not(self, node: nodes.Not) -> str:
        return f"(not {self.expression(node.node)})"

    def _read_neg(self, node: nodes.Neg) -> str:
        return f"(-{self.expression(node.node)})"

    def _read_pos(self, node: nodes.Pos) -> str:
        return self.expression(node.node)

    def _read_concat(self, node: nodes.Concat) -> str:
        return f"({' ~ '.join(map(self.expression, node.nodes))})"

    def _read_compare(self, node: nodes.Compare) -> str:
        operands = [self.expression(node.expr), *(self.expression(operand.expr) for operand in node.ops)]
        pairs = zip(operands, node.ops, operands[1:], strict=False)
        return "(" + " and ".join(f"{left} {_COMPARE[operand.op]} {right}" for left, operand, right in pairs) + ")"

    def _read_getattr(self, node: nodes.Getattr) -> str:
        return f"{self.expression(node.node)}.{node.attr}"

    def _read_getitem(self, node: nodes.Getitem) -> str:
        return f"{self.expression(node.node)}[{self.expression(node.arg)}]"

    def _read_slice(self, node: nodes.Slice) -> str:
        ends = [self.expression(end) if end else "" for end in (node.start, node.stop, node.step)]
        return ":".join(ends if ends[2] else ends[:2])

    def _read_filter(self, node: nodes.Filter) -> str:
        if node.node is None:
            raise _untranslatable("a filter without operand", node.lineno)
        value = self.expression(node.node)
        if node.name in ("length", "count"):
            value = f'{value}|default("")'  # jinja2 takes the length of an undefined value as 0
        return f"({value}|{node.name}{self._arguments(node, optional=True)})"

    def _read_test(self, node: nodes.Test) -> str:
        value = self.expression(node.node)
        if node.name == "none":
            self._note("'is none' became '== none'")
            return f"({value} == none)"
        if node.name == "sequence":  # Python's strings and dicts count as sequences in jinja2
            return f"({value} is sequence or {value} is string or {value} is mapping)"
        return f"({value} is {node.name}{self._arguments(node, optional=True)})"

    def _read_call(self, node: nodes.Call) -> str:
        if type(node.node).__name__ == "Getattr" and (call := self._method(node)):
            self._note(f"method {node.node.attr}() became a filter or test")  # type: ignore[attr-defined]
            return call
        return f"{self.expression(node.node)}{self._arguments(node)}"

    def _method(self, node: Any) -> str | None:
        """The counterpart of a Python method, None for one that has none."""
        value, name = self.expression(node.node.node), node.node.attr
        arguments = [self.expression(argument) for argument in node.args]
        if name in _SAME_NAMED_FILTERS or name in ("strip", "replace"):
            return f"({value}|{'trim' if name == 'strip' else name}({', '.join(arguments)}))"
        if name in ("startswith", "endswith") and len(arguments) == 1:
            options = node.args[0].items if type(node.args[0]).__name__ == "Tuple" else node.args
            test = "startingwith" if name == "startswith" else "endingwith"
            return "(" + " or ".join(f"{value} is {test}({self.expression(option)})" for option in options) + ")"
        if name == "get" and len(arguments) in (1, 2):
            default = arguments[1] if len(arguments) == 2 else "none"
            return f"({value}[{arguments[0]}] if {arguments[0]} in {value} else {default})"
        return {
            "split": f"({value}|split({', '.join(arguments)})|list)",
            "splitlines": f"({value}|lines|list)",
            "join": f"({', '.join(arguments)}|join({value}))",
            "items": f"({value}|items)",
            "keys": f"({value}|list)",
            "values": f"({value}|items|map(attribute=1)|list)",
        }.get(name)

    def _arguments(self, node: Any, *, optional: bool = False) -> str:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise _untranslatable("* or ** in a call", node.lineno)
        written = [self.expression(argument) for argument in node.args or ()]
        written += [f"{keyword.key}={self.expression(keyword.value)}" for keyword in node.kwargs or ()]
        return f"({', '.join(written)})" if written or not optional else ""


def _indented(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]


def _invalid(why: str) -> FormatError:
    return FormatError(
        "the checkpoint's chat template is no valid Jinja",
        why=why,
        fix="correct chat_template in the checkpoint, or remove it to convert a base model",
    )


def _untranslatable(what: str, line: int) -> FormatError:
    return FormatError(
        "the checkpoint's chat template cannot be written for the LiteRT-LM runtime",
        why=f"line {line}: the runtime has no counterpart for {what}",
        fix="give the checkpoint a template without it, or convert to another target",
    )
