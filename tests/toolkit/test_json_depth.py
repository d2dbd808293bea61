"""Nesting is seen before the parser meets it, whatever the process's recursion limit."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.json_depth import MAX_DEPTH, check_json_depth

values = st.recursive(
    st.none() | st.text() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(values)
def test_the_limit_falls_exactly_on_the_depth_of_the_value(value: object) -> None:
    text, depth = json.dumps(value, ensure_ascii=False), depth_of(value)
    check_json_depth(text, most=depth)
    if depth:
        with pytest.raises(ValueError, match=f"more than {depth - 1} levels"):
            check_json_depth(text, most=depth - 1)


def test_brackets_in_strings_do_not_nest() -> None:
    check_json_depth(json.dumps({'a\\"[[[': "[" * 1000}), most=1)
    check_json_depth('"' + "[" * 1000)  # a string that never ends is the parser's to refuse


def test_a_file_of_brackets_is_refused_even_where_a_library_raised_the_recursion_limit() -> None:
    program = (
        "import sys; sys.setrecursionlimit(10**6)\n"
        "from toolkit.errors import FormatError\nfrom toolkit.manifest import Manifest\n"
        "try: Manifest.from_json(100_000 * '[')\n"
        "except FormatError as error: print(error.why)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, "the process died"
    assert f"more than {MAX_DEPTH} levels" in done.stdout
