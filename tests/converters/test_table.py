from converters.table import bundle_table, fit_table

ENTRY = {
    "name": "m-litert-int8",
    "path": "bundles/m-litert-int8",
    "target": "litert",
    "recipe": "int8",
    "bytes": 2**20,
    "bits_per_weight": 8.051,
    "kl_mean": -1e-9,
    "kl_p99": 0.1234,
    "top1_agreement": 0.955,
    "perplexity_ratio": 1.00339,
    "verdict": "pass",
    "is_new": True,
}


def test_a_line_for_each_bundle_under_the_header():
    header, line = bundle_table([ENTRY])
    assert header.split() == ["bundle", "size", "bits/weight", "KL", "mean", "KL", "p99", "top-1", "ppl", "ratio", "verdict"]
    assert line.split() == ["bundles/m-litert-int8", "1", "MiB", "8.05", "0.0000", "0.123", "95.5", "%", "1.0034", "pass"]


def test_a_bundle_that_is_not_there_says_why_and_has_no_figures():
    error = {"what": "m cannot be lowered", "why": "its model_type is moe", "fix": "another", "code": 4}
    names = ("path", "bytes", "bits_per_weight", "kl_mean", "kl_p99", "top1_agreement", "perplexity_ratio")
    _, line = bundle_table([ENTRY | dict.fromkeys(names) | {"verdict": "error", "error": error}])
    assert line.split()[1:7] == ["-"] * 6 and line.endswith("error: its model_type is moe")


def test_a_bundle_made_earlier_says_so():
    assert bundle_table([ENTRY | {"is_new": False}])[1].endswith("pass (there already)")


def test_a_candidate_that_was_refused_is_not_called_too_large():
    tried = ENTRY | {"fits": False, "is_chosen": False}
    assert [line.split("  ")[-1] for line in fit_table([tried, tried | {"verdict": "fail"}], [])] == ["verdict", "too large", "fail"]
