"""onnxruntime-genai: runs ONNX bundles on desktops and boards."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolkit.backends.base import BackendFacts, Capabilities, Message
from toolkit.backends.constraint import can_constrain
from toolkit.backends.opening import import_library, refused_files
from toolkit.backends.token_loop import TokenEngine
from toolkit.errors import one_line
from toolkit.limits import check_context_length, check_threads

if TYPE_CHECKING:
    from toolkit.bundle import Bundle

_LOG = logging.getLogger(__name__)
_DISTRIBUTION = "onnxruntime-genai"


def _import_engine() -> Any:
    def load() -> Any:
        import onnxruntime_genai as genai

        genai.disable_telemetry_events()
        return genai

    packages = {"onnxruntime_genai": _DISTRIBUTION, "onnxruntime": "onnxruntime", "numpy": "numpy"}
    return import_library(load, engine="ONNX", extra="onnx", packages=packages)


class OnnxBackend:
    """See `toolkit.backends.base.Backend`."""

    name = "onnx"
    targets = ("onnx",)

    def probe(self) -> BackendFacts:
        genai = _import_engine()
        import onnxruntime

        providers = [name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()]
        detail = f"onnxruntime {onnxruntime.__version__}; execution providers here: {', '.join(providers)}; bundles ask for the CPU's"
        can_rewind = hasattr(genai.Generator, "rewind_to")
        capabilities = Capabilities(checkpoint=can_rewind, logits=True, constraints=can_constrain())
        return BackendFacts(str(genai.__version__), ("CPU",), detail, capabilities)

    def open_engine(self, bundle: Bundle, *, context_length: int, threads: int) -> TokenEngine:
        check_threads(threads)
        check_context_length(context_length, most=bundle.manifest.context_length)
        genai = _import_engine()
        try:
            model = _open_model(genai, bundle, context_length, threads)
            text = OnnxText(genai.Tokenizer(model), bundle)
            n_vocab = int(json.loads(bundle.entry_path.read_bytes())["model"]["vocab_size"])
        except Exception as error:  # the library raises RuntimeError, and whatever onnxruntime raised
            raise refused_files(bundle, error, by=_DISTRIBUTION) from error
        return TokenEngine(
            "onnx",
            text,
            lambda: OnnxSequence(genai, model, context_length),
            context_length=context_length,
            stop_ids=bundle.manifest.stop_token_ids,
            n_vocab=n_vocab,
            folder=bundle.entry_path.parent,
        )


def _open_model(genai: Any, bundle: Bundle, context_length: int, threads: int) -> Any:
    """The model, on the processors its genai_config.json asks for; on the CPU, with a warning, where these are not to be had."""
    options = {"session_options": {"intra_op_num_threads": threads}}
    overlay = json.dumps({"model": {"decoder": options}, "search": {"max_length": context_length}})

    def configured() -> Any:
        config = genai.Config(str(bundle.entry_path.parent))
        config.overlay(overlay)
        return config

    asked = asked_providers(json.loads(bundle.entry_path.read_bytes()))
    try:
        model = genai.Model(configured())
    except Exception as error:
        if not asked:
            raise
        config = configured()
        config.clear_providers()
        model = genai.Model(config)
        _LOG.warning("%s asks for %s, which is not to be had here (%s)", bundle.name, ", ".join(asked), one_line(error))
    if asked and str(model.device_type).lower() == "cpu":
        _LOG.warning("%s asks for %s and runs on the CPU", bundle.name, ", ".join(asked))
    return model


def asked_providers(config: dict[str, Any]) -> tuple[str, ...]:
    """Execution providers a genai_config.json asks for, the CPU's left out."""
    given = config["model"]["decoder"].get("session_options", {}).get("provider_options", [])
    return tuple(name for provider in given for name in provider if name.lower() != "cpu")


class OnnxText:
    """See `toolkit.backends.token_loop.TokenText`: the tokenizer and the template of the engine itself."""

    def __init__(self, tokenizer: Any, bundle: Bundle) -> None:
        self._tokenizer = tokenizer
        # The engine's tokenizer adds no BOS, and a template that wants one writes it: only a base model's text needs it put first.
        self.start_ids: tuple[int, ...] = (int(tokenizer.bos_token_id),) if bundle.manifest.tokenizer.get("prepend_bos") else ()

    def encode(self, text: str) -> list[int]:
        return [int(token_id) for token_id in self._tokenizer.encode(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        import numpy as np

        return str(self._tokenizer.decode(np.array(token_ids, np.int32))) if token_ids else ""

    def render(self, messages: Sequence[Message]) -> str:
        given = json.dumps([{"role": message.role, "content": message.content} for message in messages])
        try:
            return str(self._tokenizer.apply_chat_template(given, add_generation_prompt=True))
        except Exception as error:
            raise ValueError(one_line(error)) from error


class OnnxSequence:
    """See `toolkit.backends.token_loop.TokenModel`: a generator that never chooses a token itself."""

    chunk = 32  # 0.1 to 0.2 s on two cores for models of 135 to 270 million weights; longer ones were no faster there

    def __init__(self, genai: Any, model: Any, context_length: int) -> None:
        parameters = genai.GeneratorParams(model)
        parameters.set_search_options(max_length=context_length, do_sample=False)
        self._generator = genai.Generator(model, parameters)

    def feed(self, token_ids: Sequence[int]) -> None:
        import numpy as np

        self._generator.append_tokens(np.array(token_ids, np.int32))

    def logits(self) -> Any:
        import numpy as np

        return self._generator.get_logits()[0, -1].astype(np.float32, copy=False)

    def rewind(self, n_tokens: int) -> None:
        self._generator.rewind_to(n_tokens)

    def close(self) -> None:
        self._generator = None


BACKEND = OnnxBackend()
