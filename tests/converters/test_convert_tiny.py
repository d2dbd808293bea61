"""One command on a tiny random checkpoint, with nothing replaced: real reader, real lowering, real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converters.cli import main
from converters.compare import compare_bundles
from converters.verify import verify_bundle
from tests.converters.tiny_checkpoints import save_hf, tiny_model
from toolkit import Bundle, Engine
from toolkit.cache import CACHE_VARIABLE
from toolkit.calibration import read_calibration
from toolkit.errors import FormatError
from toolkit.manifest_reader import load_manifest
from toolkit.memory import estimate_memory

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ChatML llama with 320 tokens as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("source") / "tiny-llama"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "max_position_embeddings": 1024}
    save_hf(tiny_model("llama-tied", bos_token_id=260, eos_token_id=261, pad_token_id=259, **sizes), folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def published(tiny: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT after `convert tiny-llama --recipe fp32,int8`."""
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(cache))
        assert main([str(tiny), "--to", "litert", "--recipe", "fp32,int8", "--context", "1024", "--out", str(out)]) == 0
    return out


def test_both_bundles_are_published_with_their_figures(published: Path) -> None:
    fp32, int8 = (Bundle.open(published / f"tiny-llama-litert-{recipe}").manifest for recipe in ("fp32", "int8"))
    assert fp32.fidelity is not None and int8.fidelity is not None
    assert fp32.fidelity.verdict == int8.fidelity.verdict == "pass"
    assert fp32.fidelity.n_tokens >= 2000
    assert fp32.fidelity.max_abs_logit_error <= 1e-3
    assert fp32.fidelity.greedy_tokens_equal == fp32.fidelity.greedy_tokens_compared == 64
    assert 0 < int8.fidelity.kl_mean <= 0.03
    assert int8.fidelity.kl_mean > 100 * abs(fp32.fidelity.kl_mean)
    assert (fp32.chat, fp32.tokenizer["kind"]) == (True, "huggingface")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory of processes is read from /proc")
def test_a_published_bundle_is_planned_for_by_what_it_took(published: Path) -> None:
    for folder in published.iterdir():
        manifest = load_manifest(folder)
        calibration = read_calibration(manifest)
        assert calibration is not None and len(manifest.memory["measured"]["runs"]) == 3
        assert estimate_memory(manifest, context_length=256).is_calibrated


def test_a_published_bundle_answers_in_the_real_engine(published: Path) -> None:
    with Engine.open(Bundle.open(published / "tiny-llama-litert-int8")) as engine:
        answer = "".join(piece.text for piece in engine.session().send("hello", max_tokens=8))
    assert answer


def test_measuring_a_bundle_again_gives_the_recorded_figures(published: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    bundle = published / "tiny-llama-litert-int8"
    recorded = Bundle.open(bundle).manifest.fidelity
    assert recorded is not None
    again = verify_bundle(bundle)
    assert (again.verdict, again.gates, again.n_tokens) == (recorded.verdict, recorded.gates, recorded.n_tokens)
    assert again.greedy_tokens_equal == recorded.greedy_tokens_equal
    for figure in ("kl_mean", "kl_p99", "top1_agreement", "perplexity", "reference_perplexity", "max_abs_logit_error"):
        assert getattr(again, figure) == pytest.approx(getattr(recorded, figure), rel=1e-5), figure


def test_a_bundle_is_not_measured_against_another_checkpoint(
    published: Path, tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    weights = tiny / "model.safetensors"
    sound = weights.read_bytes()
    weights.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    try:
        with pytest.raises(FormatError, match="other hashes than those the bundle was made from"):
            verify_bundle(published / "tiny-llama-litert-int8")
    finally:
        weights.write_bytes(sound)


def test_a_gate_that_does_not_hold_publishes_nothing(
    tiny: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    arguments = [str(tiny), "--recipe", "int4-g32", "--context", "1024", "--max-kl", "1e-9", "--out", str(tmp_path), "--json"]
    assert main(arguments) == 6
    result = json.loads(capsys.readouterr().out)
    assert result["error"]["code"] == 6
    assert result["bundles"][0]["verdict"] == "fail"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []
    assert (tmp_path / ".refused" / "tiny-llama-litert-int4-g32").is_dir()


def test_two_bundles_of_one_checkpoint_are_compared_through_their_own_runtimes(published: Path, cache: Path) -> None:
    fp32, int8 = (published / f"tiny-llama-litert-{recipe}" for recipe in ("fp32", "int8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(cache))
        same, other = compare_bundles(fp32, fp32), compare_bundles(int8, fp32)
    recorded = Bundle.open(int8).manifest.fidelity
    assert recorded is not None
    assert same.kl_mean == 0 and same.top1_agreement == 1 and same.n_tokens == recorded.n_tokens
    assert other.kl_mean == pytest.approx(recorded.kl_mean, rel=0.01), "fp32 answers like the checkpoint"
    assert other.reference_perplexity == pytest.approx(recorded.reference_perplexity, rel=1e-4)
