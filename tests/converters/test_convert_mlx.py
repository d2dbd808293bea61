"""`convert --to mlx` with nothing replaced, and the bundle opened unchanged by mlx_lm's own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from converters.cli import main
from converters.verify import verify_bundle
from tests.converters.tiny_checkpoints import save_hf, tiny_model, write_gguf
from toolkit import Bundle
from toolkit.cache import CACHE_VARIABLE

pytest.importorskip("mlx_lm", reason="pip install 'ondevice-toolkit[mlx]'")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "max_position_embeddings": 1024}
TOKENS = {"bos_token_id": 260, "eos_token_id": 261, "pad_token_id": 259}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def published(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT after a chat model went to fp32 and int8, and a GGUF file to keep."""
    folder = tmp_path_factory.mktemp("source")
    source = save_hf(tiny_model("llama-tied", **SIZES, **TOKENS), folder / "tiny")
    (source / "chat_template.jinja").write_text(CHATML)
    gguf = write_gguf(tiny_model("llama-tied", **SIZES), folder / "stored.gguf", storage="Q4_1")
    out = folder / "bundles"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(cache))
        for place, recipes in ((source, "fp32,int8"), (gguf, "keep")):
            assert main([str(place), "--to", "mlx", "--recipe", recipes, "--context", "1024", "--out", str(out)]) == 0
    return out


def test_bundles_are_published_with_their_figures(published: Path) -> None:
    fp32, int8 = (Bundle.open(published / f"tiny-mlx-{recipe}").manifest for recipe in ("fp32", "int8"))
    assert fp32.fidelity is not None and int8.fidelity is not None
    assert (fp32.fidelity.verdict, int8.fidelity.verdict) == ("pass", "pass")
    assert fp32.fidelity.max_abs_logit_error <= 1e-3
    assert fp32.fidelity.greedy_tokens_equal == fp32.fidelity.greedy_tokens_compared == 64
    assert 0 < int8.fidelity.kl_mean <= 0.03 and int8.fidelity.kl_mean > 100 * abs(fp32.fidelity.kl_mean)
    assert (int8.chat, int8.chat_template) == (True, CHATML)
    assert int8.recipe["as_written"]["linear"] == ["int8 affine, groups of 64, float16 scale and bias"]
    assert int8.recipe["as_written"]["chat_template"]["verified_conversations"] > 12
    assert int8.tokenizer["verified_texts"] > 300
    assert int8.memory["kv_cache_bytes_per_token"] == 2 * 4 * 2 * 32 * 2
    weight_file = next(record for record in int8.files if record.path == int8.entry)
    assert 0 < weight_file.bytes - int8.memory["weights_bytes"] < 16_000, "all but the header are weights"
    assert int8.recipe["promised_bits_per_weight"] == pytest.approx(int8.bits_per_weight, rel=1e-6)


def test_kept_codes_answer_as_the_file_they_come_from(published: Path) -> None:
    keep = Bundle.open(published / "stored-mlx-keep").manifest
    assert keep.fidelity is not None and keep.fidelity.kl_mean < 1e-4
    assert "the source's own Q4_1" in keep.recipe["as_written"]["linear"][0]


@pytest.mark.parametrize("name", ["tiny-mlx-fp32", "tiny-mlx-int8", "stored-mlx-keep"])
def test_mlx_lm_generates_from_the_bundle_unchanged(name: str, published: Path) -> None:
    command = [sys.executable, "-m", "mlx_lm", "generate", "--model", str(published / name), "--prompt", "the", "--max-tokens", "12"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*command, "--temp", "0", "--verbose", "True"], capture_output=True, text=True, env=env, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Generation:" in done.stdout


def test_a_bundle_of_another_width_would_not_be_generated_from(published: Path, tmp_path: Path) -> None:
    """The twin: the command fails when config.json does not say how the weights are packed."""
    import shutil

    broken = Path(shutil.copytree(published / "tiny-mlx-int8", tmp_path / "broken"))
    config = json.loads((broken / "config.json").read_text())
    config["intermediate_size"] = 256
    (broken / "config.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "mlx_lm", "generate", "--model", str(broken), "--prompt", "the", "--max-tokens", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=500)
    assert done.returncode != 0


def test_measuring_a_bundle_again_gives_the_recorded_figures(published: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    recorded = Bundle.open(published / "tiny-mlx-int8").manifest.fidelity
    again = verify_bundle(published / "tiny-mlx-int8")
    assert recorded is not None
    assert (again.verdict, again.n_tokens) == (recorded.verdict, recorded.n_tokens)
    assert again.kl_mean == pytest.approx(recorded.kl_mean, rel=1e-5)


def test_an_unverified_bundle_claims_no_proof_and_is_the_same_files(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    source = str(published.parent / "tiny")
    assert main([source, "--to", "mlx", "--recipe", "int8", "--context", "1024", "--no-verify", "--out", str(tmp_path)]) == 0
    ours, theirs = (Bundle.open(place / "tiny-mlx-int8").manifest for place in (tmp_path, published))
    assert ours.files == theirs.files and ours.fidelity is None
    assert (ours.tokenizer["verified_texts"], ours.recipe["as_written"]["chat_template"]["verified_conversations"]) == (0, 0)


@pytest.mark.real
def test_smollm2_kept_in_mlx_is_the_checkpoint(smollm2_gguf: Path, tmp_path: Path) -> None:
    assert main([str(smollm2_gguf), "--to", "mlx", "--recipe", "keep", "--out", str(tmp_path)]) == 0
    [place] = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    fidelity = Bundle.open(place).manifest.fidelity
    assert fidelity is not None
    assert fidelity.kl_mean < 1e-4 and fidelity.greedy_tokens_equal == 64
