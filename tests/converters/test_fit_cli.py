"""`convert --fit`: what it prints."""

import json

import pytest

from converters import cli
from tests.converters.small_model import SmallTarget, SmallVerifier, small_parts


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """A function that runs `convert small --to small ...` and gives exit code, stdout and stderr."""
    import converters.fit

    parts = small_parts(tmp_path / "cache", SmallTarget(), verifier=SmallVerifier())
    monkeypatch.setattr(converters.fit, "default_parts", lambda: parts)
    monkeypatch.setattr(cli, "_interrupt_on_termination", lambda: None)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = cli.main(["small", "--to", "small", *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


def test_the_table_says_what_was_chosen_and_where_it_is_drawn(run):
    code, out, err = run("--fit", "50kB", "--recipe", "int8,int4-g32,fp32")
    header, int4, int8, *plots = out.splitlines()
    assert code == 0 and header.startswith("bundle") and plots == ["bundles/small-fit.svg", "bundles/small-fit.png"]
    assert int4.startswith("small-small-int4-g32") and int4.endswith("fits")
    assert int8.startswith("bundles/small-small-int8") and int8.endswith("chosen")
    assert "small: fp32 would not fit" in err


def test_json_has_the_bundle_and_the_frontier(run):
    code, out, _ = run("--fit", "50kB", "--recipe", "int8,int4-g32", "--json")
    data = json.loads(out)
    assert code == 0 and set(data) == {"bundles", "frontier", "plots"}
    assert [entry["recipe"] for entry in data["bundles"]] == ["int8"]
    assert [entry["recipe"] for entry in data["frontier"]] == ["int4-g32", "int8"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"), [(("10kB",), 3, "--fit 1MB"), (("lots",), 2, "lots"), (("50kB", "--no-verify"), 2, "--no-verify")]
)
def test_what_cannot_be_is_refused_in_three_lines(run, arguments, code, said):
    got, _, err = run("--recipe", "int4-g32", "--fit", *arguments)
    *_, what, why, fix = err.splitlines()
    assert got == code and said in "".join((what, why, fix)) and why.startswith("  why: ") and fix.startswith("  fix: ")
    assert err.splitlines().count(what) == 1
