from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.jinja_dialect import parse_template, quoted, write_template
from converters.runtime_probe import render_runtime
from converters.template_source import render_transformers
from toolkit.errors import FormatError

MESSAGES = [{"role": "user", "content": " Ab,c\n"}]


def written(template: str) -> str:
    return write_template(parse_template(template), notes=[])


def in_runtime(*templates: str) -> list[str | None]:
    """What the runtime makes of each, joined by a mark so that one visit is enough."""
    mark = "\x1f"
    whole = f'{{{{- "{mark}" -}}}}'.join(templates)
    (rendered,) = render_runtime("{%- set text = messages[0].content[0].text -%}" + whole, [MESSAGES]).rendered
    assert rendered.text is not None, rendered.error
    return list(rendered.text.split(mark))


EXPRESSIONS = [
    "text.strip()",
    "text.lstrip()",
    "text.rstrip('\\n')",
    "text.strip().upper()",
    "text.lower().title()",
    "text.strip().split(',')[1]",
    "text.split(',', 1)|length",
    "text.replace('A', 'x')",
    "'y' if text.startswith(' A') else 'n'",
    "'y' if text.endswith(('q', '\\n')) else 'n'",
    "'+'.join(['a', 'b'])",
    "{'a': 1}.get('a')",
    "{'a': 1}.get('b', 2)",
    "{'a': 1}.keys()|list|length",
    "{'a': 7}.values()|list|first",
    "'a\\nb'.splitlines()|length",
    "'%s=%d' % ('k', 3)",
    "missing|length",
    "'y' if none is none else 'n'",
    "'y' if missing is none else 'n'",
    "'y' if missing is not none else 'n'",
    "'y' if text is sequence else 'n'",
    "'y' if 1 < 2 <= 2 != 3 else 'n'",
    "text[1:3] ~ 4 ~ text[-2]",
    "2 ** 3 - 7 // 2 * 2 + 7 % 4",
    "-(+3)",
    "not '' and 'x' or 'z'",
    "'a.strip() is none {% generation %} {{ x }}'",
    "'quote \" back \\\\ tab \\t é 日 \\u200b'",
    "[1, (2, 'b')][1][1]",
    "'yes' if 'a' in ['a'] and 'b' not in 'ac' else 'no'",
    "(text|trim)|length",
]


def test_every_expression_means_in_the_runtime_what_it_means_in_jinja2() -> None:
    templates = ["{{ " + expression + " }}" for expression in EXPRESSIONS]
    source = "{%- set text = messages[0].content -%}"
    expected = [render_transformers(source + template, MESSAGES, {}) for template in templates]
    got = in_runtime(*(written(template) for template in templates))
    for expression, want, have in zip(EXPRESSIONS, expected, got, strict=True):
        assert have == want, expression


@pytest.mark.parametrize("expression", ["text.upper()", "{'a': 1}.get('a')", "'y' if none is none else 'n'"])
def test_left_as_written_it_would_fail_or_differ(expression: str) -> None:
    want = render_transformers("{%- set text = messages[0].content -%}{{ " + expression + " }}", MESSAGES, {})
    raw = "{%- set text = messages[0].content[0].text -%}{{- " + expression + " -}}"
    assert render_runtime(raw, [MESSAGES]).rendered[0].text != want


STATEMENTS = [
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n",
    "{# note #}\nx{#- y -#} z\n\n",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% else %}<{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2, 3] %}{% for y in [1, 2, 3] %}{% if y > x %}{% break %}{% endif %}{{ y }}{% endfor %}|{% endfor %}",
    "{% for x in [1, 2, 3] %}{% if x == 1 %}{% if 1 %}{% continue %}{% endif %}{% endif %}{{ x }}{{ 'end' if loop.last }}{% endfor %}",
    "{% for x in [1, 2] %}{% break %}{{ x }}{% endfor %}.",
    "{% for x in [] %}{% else %}none{% endfor %}{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
    "{% macro m(a, b='z') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(2, b='y') }}",
    "{% macro m() %}<{{ caller('q') }}>{% endmacro %}{% call(x) m() %}in {{ x }}{% endcall %}",
    "{% set a, b = ('x', 'y') %}{{ a }}{{ b }}{% set c %} cap {% endset %}{{ c|trim }}{% set d | upper %}low{% endset %}{{ d }}",
    "{% filter upper|replace('B', 'x') %}abc{% endfilter %}{% with q = 5 %}{{ q }}{% endwith %}",
    "{% raw %}{{ kept }}{% endraw %} {% generation %}g{% endgeneration %}",
]


def test_every_statement_means_in_the_runtime_what_it_means_in_jinja2() -> None:
    expected = [render_transformers(template, MESSAGES, {}) for template in STATEMENTS]
    got = in_runtime(*(written(template) for template in STATEMENTS))
    for template, want, have in zip(STATEMENTS, expected, got, strict=True):
        assert have == want, template


@settings(max_examples=8, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\x1f")), min_size=8, max_size=8))
def test_any_text_survives_as_a_constant(texts: list[str]) -> None:
    nasty = [".strip()", "{{", "{% generation %}", "{#", "is none", '"\\', "\r\n"]
    mixed = [piece + text for piece, text in zip([*nasty, ""], texts, strict=True)]
    assert in_runtime(*(f"{{{{- {quoted(text)} -}}}}" for text in mixed)) == mixed


def test_a_constant_left_unescaped_would_be_rewritten_by_the_runtime() -> None:
    assert in_runtime('{{- "call .strip() here" -}}') != ["call .strip() here"]
    assert in_runtime("{{- " + quoted("call .strip() here") + " -}}") == ["call .strip() here"]


TAGS = "for m in x;endfor;if a;elif b;else;endif;break;continue;macro m(;block q;include z;generation;endgeneration;raw".split(";")
PIECES = "{{ x }} {% %} {{ }} {# #} 1 a.b ['c'] ( ) |f is set a = t ' *a **b é lambda not ~ -%} {%- [ ] :".split(" ")
FRAGMENTS = st.lists(st.sampled_from([f"{{% {tag} %}}" for tag in TAGS] + [f"{piece} " for piece in PIECES]), max_size=14)


@settings(max_examples=400, deadline=None)
@given(FRAGMENTS)
def test_no_template_raises_anything_but_a_format_error(fragments: list[str]) -> None:
    try:
        written("".join(fragments))
    except FormatError as error:
        assert error.why and error.fix


def test_nesting_too_deep_for_python_is_a_format_error() -> None:
    with pytest.raises(FormatError) as caught:
        written("{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}")
    assert "nested" in caught.value.why
