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
    assert known_recipes() == ["fp16", "fp32", "int8", "int4-g32", "int8-hadamard"]
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
    with pytest.raises(UsageError, match="known recipes are fp16, fp32, int8, int4-g32, int8-hadamard"):
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
