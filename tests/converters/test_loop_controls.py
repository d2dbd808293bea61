from __future__ import annotations

import pytest
from jinja2 import Environment, nodes

from converters.loop_controls import without_loop_controls

CONTROLS = Environment(extensions=["jinja2.ext.loopcontrols"])
PLAIN = Environment()


def lowered(template: str) -> tuple[str, list[str]]:
    """What plain jinja2 renders after the rewrite, and the notes."""
    notes: list[str] = []

    def rewrite(statements: list[nodes.Node]) -> list[nodes.Node]:
        done = without_loop_controls(statements, notes.append)
        for statement in done:
            for field in ("body", "else_"):
                if hasattr(statement, field):
                    setattr(statement, field, rewrite(list(getattr(statement, field))))
        return done

    tree = CONTROLS.parse(template)
    tree.body = rewrite(list(tree.body))
    assert not list(tree.find_all((nodes.Break, nodes.Continue)))
    return PLAIN.from_string(tree).render(), notes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "template",
    [
        "{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in [1,2,3] %}a{% if x == 2 %}b{% break %}c{% endif %}{{ x }}{% endfor %}d",
        "{% for x in [1,2,3,4] %}{% if x == 1 %}p{% elif x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in [1,2,3] %}{% if x > 1 %}{% if x > 2 %}{% continue %}{% endif %}m{% else %}n{% endif %}{{ x }}{% endfor %}",
        "{% for x in [1,2] %}{% for y in [1,2,3] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %};{% endfor %}",
        "{% for x in [1,2] %}{% if x == 2 %}{% break %}{% endif %}{% for y in [1,2] %}{% continue %}{% endfor %}{{ x }}{% endfor %}",
        "{% for x in [] %}{% break %}{% else %}none{% endfor %}",
    ],
)
def test_conditions_do_what_the_controls_did(template: str) -> None:
    text, notes = lowered(template)
    assert text == CONTROLS.from_string(template).render()
    assert notes


def test_a_loop_without_controls_is_left_as_it_is() -> None:
    tree = CONTROLS.parse("{% for x in [1] %}{% if x %}{{ x }}{% endif %}{% endfor %}")
    notes: list[str] = []
    assert without_loop_controls(tree.body, notes.append) == tree.body and not notes
