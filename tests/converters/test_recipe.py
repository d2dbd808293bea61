import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.recipe import RECIPES_DIR, known_recipes, load_recipe
from converters.rule import Algorithm, Granularity, Rule, TensorClass, tensor_class
from toolkit.errors import ToolkitError, UsageError

SHAPES = {
    "model.embed_tokens.weight": (49152, 576),
    "model.layers.0.mlp.up_proj.weight": (1536, 576),
    "model.layers.0.self_attn.q_proj.bias": (576,),
    "model.norm.weight": (576,),
}
N_WEIGHTS = sum(math.prod(shape) for shape in SHAPES.values())
VECTOR_BITS = 32 * (576 + 576)
INT8 = (RECIPES_DIR / "int8.toml").read_text()


def by_hand(bits: int, scales: int, scale_bits: int) -> float:
    """Bits per weight of SHAPES, counted without the code under test."""
    return ((N_WEIGHTS - 1152) * bits + scales * scale_bits + VECTOR_BITS) / N_WEIGHTS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fp32", 32.0),
        ("fp16", by_hand(16, 0, 0)),
        ("int8", by_hand(8, 49152 + 1536, 32)),
        ("int8-hadamard", by_hand(8, 49152 + 1536, 32)),
        ("int4-g32", by_hand(4, (49152 + 1536) * 576 // 32, 16)),
    ],
)
def test_promised_bits_per_weight_equals_a_count_by_hand(name, expected):
    assert load_recipe(name).promised_bits_per_weight(SHAPES, is_tied=True) == pytest.approx(expected, rel=1e-12)


def test_a_recipe_without_its_scales_would_promise_something_else():
    """Must-fail twin: forgetting scales is seen by the comparison above."""
    promised = load_recipe("int4-g32").promised_bits_per_weight(SHAPES, is_tied=True)
    assert promised != pytest.approx(by_hand(4, 0, 0), rel=1e-2)
    assert promised == pytest.approx(4.5, abs=0.01)


def test_a_tied_head_is_counted_once_and_an_untied_one_is_counted():
    untied = SHAPES | {"lm_head.weight": (49152, 576)}
    recipe = load_recipe("fp16")
    assert recipe.promised_bits_per_weight(untied, is_tied=True) == recipe.promised_bits_per_weight(SHAPES, is_tied=True)
    assert recipe.promised_bits_per_weight(untied, is_tied=False) < recipe.promised_bits_per_weight(SHAPES, is_tied=True)


def test_every_shipped_recipe_loads_and_is_named_like_its_file():
    assert known_recipes() == ["fp16", "fp32", "int8", "keep", "int4-g32", "int4-g32-gptq", "int8-hadamard"]
    for name in known_recipes():
        assert load_recipe(name).name == name


def test_gates_are_those_the_project_promises():
    gates = {name: dict(load_recipe(name).gates) for name in known_recipes()}
    assert gates["fp32"] == {"max_abs_logit_error": 1e-3, "greedy_tokens_equal": 64}
    assert gates["int8"] == {"kl_mean": 0.03}
    assert gates["int4-g32"] == {}


def test_max_kl_replaces_the_gate_and_keeps_the_others():
    assert load_recipe("fp32").with_max_kl(0.5).gates == {"max_abs_logit_error": 1e-3, "greedy_tokens_equal": 64, "kl_mean": 0.5}
    assert load_recipe("int8").with_max_kl(0.5).gates == {"kl_mean": 0.5}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError, match="known recipes are fp16, fp32, int8, keep, int4-g32, int4-g32-gptq, int8-hadamard"):
        load_recipe("int3")


def test_a_path_is_read_like_a_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(INT8)
    assert load_recipe(str(path)).digest() == load_recipe("int8").digest()


def test_digest_follows_the_rules_and_nothing_else(tmp_path):
    same, other = tmp_path / "same.toml", tmp_path / "other.toml"
    same.write_text(INT8.replace("kl_mean = 0.03", "kl_mean = 0.5"))
    other.write_text(INT8.replace('activations = "int8-dynamic"', 'activations = "float32"', 1))
    assert load_recipe(str(same)).digest() == load_recipe("int8").digest()
    assert load_recipe(str(other)).digest() != load_recipe("int8").digest()


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("bits = 8", "bits = 9", "rules.embedding.bits"),
        ("bits = 8", "bits = true", "rules.embedding.bits"),
        ("bits = 8", "bits = 8.0", "rules.embedding.bits"),
        ('algorithm = "round"', 'algorithm = "mse"', "rules.embedding.algorithm"),
        ('algorithm = "round"', 'algorithm = "cast"', "rules.embedding.algorithm"),
        ('granularity = "channel"', 'granularity = "row"', "rules.embedding.granularity"),
        ('granularity = "channel"', 'granularity = "channel"\ngroup_size = 32', "rules.embedding.group_size"),
        ('granularity = "channel"', 'granularity = "blockwise"\ngroup_size = 48', "rules.embedding.group_size"),
        ("symmetric = true", "symmetric = 1", "rules.embedding.symmetric"),
        ('activations = "int8-dynamic"', 'activations = "int16"', "rules.embedding.activations"),
        ('activations = "int8-dynamic"', 'activation = "float32"', "rules.embedding.activation"),
        ('name = "int8"', 'name = "int4"', "name"),
        ('name = "int8"', 'name = "best"', "name"),
        ('name = "int8"', 'name = "int8-g32"', "name"),
        ('name = "int8"', 'name = "int8-gptq"', "name"),
        ('name = "int8"', 'name = "mixed-4.5bpw"', "name"),
        ('name = "int8"', "name = 8", "name"),
        ("kl_mean = 0.03", "kl_mean = -1", "gates.kl_mean"),
        ("kl_mean = 0.03", "kl_mean = nan", "gates.kl_mean"),
        ("kl_mean = 0.03", "kl = 0.03", "gates.kl"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(tmp_path, old, new, field):
    text = INT8.replace(old, new, 1)
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_recipe(str(path))
    line = line_of(text, new) + new.count("\n")
    assert f"broken.toml line {line}: {field} cannot be used" in caught.value.what


def test_the_unbroken_text_loads(tmp_path):
    """Must-fail twin of the table above: it is the change, not the reader, that is refused."""
    path = tmp_path / "sound.toml"
    path.write_text(INT8)
    assert load_recipe(str(path)).rules[TensorClass.EMBEDDING] == Rule(
        8, Algorithm.ROUND, Granularity.CHANNEL, None, True, load_recipe("int8").rules[TensorClass.LINEAR].activations
    )


@pytest.mark.parametrize(
    "missing", ["bits = 8\n", 'algorithm = "round"\n', 'granularity = "channel"\n', "symmetric = true\n", 'name = "int8"\n']
)
def test_a_missing_value_is_named(tmp_path, missing):
    path = tmp_path / "broken.toml"
    path.write_text(INT8.replace(missing, "", 1))
    with pytest.raises(UsageError) as caught:
        load_recipe(str(path))
    assert missing.split(" ")[0] in caught.value.what


def test_a_missing_class_is_named(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text(INT8[: INT8.index("[rules.head]")])
    with pytest.raises(UsageError, match=r"rules\.head"):
        load_recipe(str(path))


def test_a_syntax_error_names_the_line(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text(INT8.replace("bits = 8", "bits = = 8", 1))
    with pytest.raises(UsageError, match="line 5"):
        load_recipe(str(path))


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        load_recipe(str(tmp_path / "none.toml"))


def test_a_group_size_that_does_not_divide_names_the_tensor():
    with pytest.raises(UsageError) as caught:
        load_recipe("int4-g32").promised_bits_per_weight({"model.layers.0.mlp.up_proj.weight": (8, 48)}, is_tied=False)
    assert "model.layers.0.mlp.up_proj.weight" in caught.value.what and "48" in caught.value.why


def load_text(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_recipe(str(path))


UP, DOWN = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
INT4 = (RECIPES_DIR / "int4-g32.toml").read_text()
OVERRIDES = r"""
[[overrides]]
tensors = 'model\.layers\.\d+\.mlp\..*'
bits = 16
algorithm = "cast"

[[overrides]]
tensors = '.*\.down_proj\.weight'
bits = 32
algorithm = "cast"
"""
PROMOTION = """
[promotion]
bits_per_weight = 4.6
bits = 8
algorithm = "round"
granularity = "channel"
symmetric = true
activations = "int8-dynamic"
"""
MIXED = INT4.replace('"int4-g32"', '"mixed-4.6bpw"')


def test_an_override_holds_for_the_tensors_it_names_and_the_last_one_wins(tmp_path):
    recipe = load_text(tmp_path, MIXED + OVERRIDES)
    assert recipe.rule_for(UP, (8, 8)).bits == 16
    assert recipe.rule_for(DOWN, (8, 8)).bits == 32
    assert recipe.rule_for("model.layers.0.self_attn.q_proj.weight", (8, 8)).bits == 4
    assert recipe.rule_for("model.layers.0.mlp.bias.weight", (8,)) is None


def test_an_override_matches_whole_names_only(tmp_path):
    recipe = load_text(tmp_path, MIXED + OVERRIDES.replace(r"'.*\.down_proj\.weight'", "'down_proj'"))
    assert recipe.rule_for(DOWN, (8, 8)).bits == 16


def test_overrides_and_promotion_are_part_of_digest_and_manifest(tmp_path):
    plain, overridden, promoted = (load_text(tmp_path, text) for text in (INT4, MIXED + OVERRIDES, MIXED + PROMOTION))
    assert len({plain.digest(), overridden.digest(), promoted.digest()}) == 3
    assert [each["bits"] for each in overridden.as_dict()["overrides"]] == [16, 32]
    assert promoted.as_dict()["promotion"]["bits_per_weight"] == 4.6
    assert "overrides" not in plain.as_dict() and "promotion" not in plain.as_dict()


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (r"tensors = 'model\.layers\.\d+\.mlp\..*'", "tensors = '('", "overrides.0.tensors"),
        (r"tensors = '.*\.down_proj\.weight'", "tensors = 3", "overrides.1.tensors"),
        ("bits = 32", "bits = 33", "overrides.1.bits"),
        ("bits = 16", "group_size = 32\nbits = 16", "overrides.0.group_size"),
    ],
)
def test_a_wrong_override_is_named_with_its_line(tmp_path, old, new, field):
    text = MIXED + OVERRIDES.replace(old, new, 1)
    with pytest.raises(UsageError) as caught:
        load_text(tmp_path, text)
    assert f"mine.toml line {line_of(text, new)}: {field} cannot be used" in caught.value.what


@pytest.mark.parametrize("overrides", ["overrides = 3", 'overrides = "a"', "overrides = [1]", "overrides = {bits = 3}"])
def test_overrides_that_are_no_tables_are_refused(tmp_path, overrides):
    with pytest.raises(UsageError, match="overrides cannot be used"):
        load_text(tmp_path, overrides + "\n" + MIXED)


def test_keep_is_a_recipe_whose_size_only_the_source_knows():
    keep = load_recipe("keep")
    assert keep.is_keep and not load_recipe("int8").is_keep
    with pytest.raises(UsageError, match=r"recipe keep does not fit model\.embed_tokens\.weight"):
        keep.promised_bits_per_weight(SHAPES, is_tied=True)
    promised = keep.promised_bits_per_weight(SHAPES, is_tied=True, bits_of=lambda rule, name, shape: 5 * math.prod(shape))
    assert promised == pytest.approx(by_hand(5, 0, 0), rel=1e-12)


def test_keep_takes_nothing_beside_it(tmp_path):
    text = (RECIPES_DIR / "keep.toml").read_text().replace('algorithm = "keep"', 'algorithm = "keep"\nbits = 4', 1)
    with pytest.raises(UsageError, match=r"line 6: rules\.embedding\.bits"):
        load_text(tmp_path, text)


def test_rows_kept_at_8_bits_are_counted(tmp_path):
    head = MIXED.index("[rules.linear]")
    text = MIXED[:head].replace("bits = 4", "bits = 4\nint8_rows = 1000") + MIXED[head:]
    promised = load_text(tmp_path, text).promised_bits_per_weight(SHAPES, is_tied=True)
    more = 1000 * (576 * (8 - 4) + 32 - 576 // 32 * 16) / N_WEIGHTS
    assert promised == pytest.approx(by_hand(4, (49152 + 1536) * 576 // 32, 16) + more, rel=1e-12)


@pytest.mark.parametrize(("table", "n_rows"), [("linear", "8"), ("head", "0"), ("head", "true"), ("head", "2000000"), ("head", "1.5")])
def test_rows_at_8_bits_are_for_tables(tmp_path, table, n_rows):
    with pytest.raises(UsageError, match=rf"rules\.{table}\.int8_rows"):
        load_text(tmp_path, INT4.replace(f"[rules.{table}]", f"[rules.{table}]\nint8_rows = {n_rows}"))


def test_rows_at_8_bits_have_no_place_in_an_int8_table(tmp_path):
    with pytest.raises(UsageError, match="all rows have 8 bits"):
        load_text(tmp_path, INT8.replace("[rules.head]", "[rules.head]\nint8_rows = 8"))


def test_a_promotion_promises_its_size_or_less(tmp_path):
    recipe = load_text(tmp_path, MIXED + PROMOTION)
    assert recipe.promised_bits_per_weight(SHAPES, is_tied=True) == pytest.approx(4.6)
    roomy = load_text(tmp_path, MIXED.replace("4.6", "30.0") + PROMOTION.replace("4.6", "30"))
    linear_bits = 1536 * 576 * 8 + 1536 * 32
    table_bits = 49152 * 576 * 4 + 49152 * 576 // 32 * 16
    assert roomy.promised_bits_per_weight(SHAPES, is_tied=True) == pytest.approx((linear_bits + table_bits + VECTOR_BITS) / N_WEIGHTS)
    tight = load_text(tmp_path, MIXED.replace("4.6", "4.4") + PROMOTION.replace("4.6", "4.4"))
    with pytest.raises(UsageError, match=r"allows 4\.4 bits a weight, its rules need 4\.5"):
        tight.promised_bits_per_weight(SHAPES, is_tied=True)


def test_a_promotion_leaves_alone_what_an_override_speaks_of(tmp_path):
    recipe = load_text(tmp_path, MIXED + OVERRIDES + PROMOTION)
    assert not recipe.is_promotable(UP, (8, 8))
    assert recipe.is_promotable("model.layers.0.self_attn.q_proj.weight", (8, 8))
    assert not recipe.is_promotable("model.embed_tokens.weight", (8, 8))


@pytest.mark.parametrize("size", ["0.5", "33", "true", '"5"', "nan"])
def test_a_promotion_of_no_size_is_refused(tmp_path, size):
    with pytest.raises(UsageError, match=r"promotion\.bits_per_weight"):
        load_text(tmp_path, MIXED + PROMOTION.replace("4.6", size))


def test_a_mix_is_named_after_its_promotion(tmp_path):
    with pytest.raises(UsageError, match=r"the name says 4\.6 bits a weight, \[promotion\] allows 4\.7"):
        load_text(tmp_path, MIXED + PROMOTION.replace("4.6", "4.7"))
    with pytest.raises(UsageError, match="rules of their own make it a mix"):
        load_text(tmp_path, INT4 + PROMOTION)
    with pytest.raises(UsageError, match="keep, yet a class has a rule of its own"):
        load_text(tmp_path, INT4.replace('"int4-g32"', '"keep"'))


def test_gptq_needs_calibration_and_rounding_does_not(tmp_path):
    gptq = load_text(tmp_path, INT4.replace('"int4-g32"', '"int4-g32-gptq"').replace('"round"', '"gptq"'))
    assert gptq.is_calibrated and load_text(tmp_path, MIXED + PROMOTION).is_calibrated
    assert not load_recipe("int4-g32").is_calibrated and not load_recipe("keep").is_calibrated


def test_a_tied_table_may_not_be_stored_twice(tmp_path):
    path = tmp_path / "twice.toml"
    head = INT8.index("[rules.head]")
    path.write_text(INT8[:head] + INT8[head:].replace('activations = "int8-dynamic"', 'activations = "float32"'))
    recipe = load_recipe(str(path))
    with pytest.raises(UsageError, match="twice"):
        recipe.require_one_table(is_tied=True)
    recipe.require_one_table(is_tied=False)
    load_recipe("int8").require_one_table(is_tied=True)


def test_ten_percent_off_keeps_the_promise_and_more_breaks_it():
    recipe = load_recipe("int8")
    assert not recipe.breaks_promise(8.0, 8.79) and not recipe.breaks_promise(8.0, 7.21)
    assert recipe.breaks_promise(8.0, 8.81) and recipe.breaks_promise(8.0, 7.19)
    assert recipe.breaks_promise(8.0, math.nan)


def test_classes_follow_names_and_vectors_have_none():
    assert tensor_class("model.embed_tokens.weight", (10, 4)) is TensorClass.EMBEDDING
    assert tensor_class("lm_head.weight", (10, 4)) is TensorClass.HEAD
    assert tensor_class("model.layers.3.mlp.up_proj.weight", (10, 4)) is TensorClass.LINEAR
    assert tensor_class("model.norm.weight", (4,)) is None


@given(st.binary(max_size=400))
def test_no_bytes_do_more_than_a_usage_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_bytes(content)
    with pytest.raises(ToolkitError):
        load_recipe(str(path))


@given(
    st.dictionaries(
        st.sampled_from(["name", "description", "rules", "gates", "other"]),
        st.recursive(
            st.none().map(lambda _: '""')
            | st.integers().map(str)
            | st.booleans().map(lambda value: str(value).lower())
            | st.just('"int8"'),
            lambda inner: (
                st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
                | st.dictionaries(st.sampled_from(["embedding", "linear", "head", "bits", "kl_mean"]), inner, max_size=3).map(
                    lambda table: "{" + ",".join(f"{key}={value}" for key, value in table.items()) + "}"
                )
            ),
            max_leaves=8,
        ),
    )
)
def test_no_toml_of_wrong_types_does_more_than_a_usage_error(tmp_path_factory, table):
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_text("\n".join(f"{key} = {value}" for key, value in table.items()))
    with pytest.raises(UsageError):
        load_recipe(str(path))


def test_recipes_dir_is_packaged():
    assert all(path.parent == RECIPES_DIR and path.suffix == ".toml" for path in Path(RECIPES_DIR).iterdir())
