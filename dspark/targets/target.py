"""A target: the model whose every choice is final, its tokenizer, and a forward that can also report hidden rows."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_model, load_tokenizer

from dspark.errors import CheckpointError, PairingError, PromptError
from dspark.targets.attention import SplitAttention
from dspark.targets.caches import KVBits, TargetCache
from dspark.targets.recurrence import Recorder
from dspark.targets.taps import HiddenTaps, passes

DEFAULT_CONTEXT_WINDOW = 4096
CONTEXT_WINDOW_KEYS = ("max_position_embeddings", "n_positions", "model_max_length", "max_seq_len")


class Target:
    """A loaded model. Not safe for use from more than one thread."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TokenizerWrapper,
        config: dict[str, Any],
        path: Path,
        *,
        kv_bits: KVBits | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.path = path
        self.kv_bits = kv_bits
        recorder = Recorder(model)
        self.recorder = recorder if recorder.hears else None
        self.attention: SplitAttention | None = None
        self._taps: HiddenTaps | None = None
        self._known_taps: dict[tuple[int, ...], HiddenTaps] = {}
        self._depth: int | None = None
        self._named: dict[str, nn.Module | None] = {}

    @classmethod
    def load(cls, path: Path, *, trust_remote_code: bool = False, kv_bits: KVBits | None = None) -> "Target":
        """Load the mlx-lm model folder at `path`; `kv_bits` quantizes the keys and values of full-attention layers.

        Raises:
            CheckpointError: the folder is not a model that mlx-lm can load.
        """
        try:
            model, config = load_model(path, trust_remote_code=trust_remote_code)
            tokenizer = load_tokenizer(
                path, {"trust_remote_code": trust_remote_code}, eos_token_ids=config.get("eos_token_id")
            )
            target = cls(model, tokenizer, config, path, kv_bits=kv_bits)
            target.check()
        except json.JSONDecodeError as error:
            raise CheckpointError(f"{path} has a broken JSON file ({error}); fetch the model again") from error
        except Exception as error:  # whatever a broken folder makes the libraries raise
            raise CheckpointError(
                f"{path} cannot be loaded as a model ({_first_line(error)}); fetch the model again, or take another"
            ) from error
        return target

    def check(self) -> None:
        """Read everything that later code takes for granted. Raises whatever is wrong."""
        assert self.vocabulary > 0 and self.hidden_size > 0 and self.context_window > 1 and self.layers
        assert all(token >= 0 for token in self.eos)
        _ = self.dtype

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder layers, in order."""
        return list(self.model.layers)

    @property
    def depth(self) -> int:
        """Decoder layers that a token passes: a model that applies its stack several times counts each pass."""
        if self._depth is None:
            self._depth = len(self.layers) * passes(self.layers, self._lazy_forward)
        return self._depth

    def _lazy_forward(self) -> None:
        self.model(mx.array([[0]]), cache=make_prompt_cache(self.model))

    @property
    def vocabulary(self) -> int:
        """Rows of the output head: every id below this can be emitted."""
        return int(self._text_config.get("vocab_size") or self.embedding.weight.shape[0])

    @property
    def hidden_size(self) -> int:
        """Width d of the residual stream."""
        return int(self._text_config.get("hidden_size") or self.embedding(mx.array([0])).shape[-1])

    @property
    def context_window(self) -> int:
        """Positions the model was made for."""
        config = self._text_config
        return int(next((config[key] for key in CONTEXT_WINDOW_KEYS if config.get(key)), DEFAULT_CONTEXT_WINDOW))

    @property
    def eos(self) -> frozenset[int]:
        """Ids that end an answer."""
        return frozenset(int(token) for token in self.tokenizer.eos_token_ids)

    @property
    def dtype(self) -> mx.Dtype:
        """The type that its logits, and so its residual stream, are computed in (nothing is evaluated)."""
        return self.model(mx.array([[0]]), cache=make_prompt_cache(self.model)).dtype

    @property
    def quantized_bits(self) -> int | None:
        """Bits of its quantized layers (of the narrowest), or None without any."""
        return min((module.bits for module in self.model.modules() if hasattr(module, "bits")), default=None)

    @property
    def family(self) -> str:
        """mlx-lm's name of the architecture, such as `llama`."""
        return str(self.config.get("model_type", "unknown"))

    @property
    def _text_config(self) -> dict[str, Any]:
        return dict(self.config.get("text_config") or self.config)

    @property
    def embedding(self) -> nn.Module:
        """The input embedding table, possibly quantized: the model's first, where its name is not the usual one.

        Raises:
            PairingError: the model has none.
        """
        try:
            return self._module_named("embed_tokens")
        except PairingError:
            tables = (m for _, m in self.model.named_modules() if isinstance(m, nn.Embedding | nn.QuantizedEmbedding))
            if (first := next(tables, None)) is None:
                raise
            return first

    def head(self, hidden: mx.array) -> mx.array:
        """The output head: [..., d] after the final norm to logits [..., V], without any softcap."""
        try:
            return self._module_named("lm_head")(hidden)
        except PairingError:
            return self._module_named("embed_tokens").as_linear(hidden)

    def _module_named(self, name: str) -> nn.Module:
        # Looked for once: a model has hundreds of modules, and a drafter asks for the head in every round.
        if name not in self._named:
            modules = self.model.named_modules()
            self._named[name] = next((module for path, module in modules if path.rsplit(".", 1)[-1] == name), None)
        found = self._named[name]
        if found is None:
            raise PairingError(
                f"the {self.family} family has no module `{name}` that a drafter could share; use --arm lookup"
            )
        return found

    def new_cache(self) -> TargetCache:
        """An empty cache for one sequence."""
        return TargetCache(make_prompt_cache(self.model), self.model, self.recorder, self.kv_bits)

    def tap(self, ids: tuple[int, ...]) -> None:
        """Choose which hidden rows `forward` reports from now on; the empty tuple turns reporting off."""
        if ids and ids not in self._known_taps:
            self._known_taps[ids] = HiddenTaps(self.layers, ids)
        self._taps = self._known_taps[ids] if ids else None

    def forward(self, tokens: mx.array, cache: TargetCache) -> tuple[mx.array, mx.array | None]:
        """Run `tokens` [1, w] on top of `cache`; returns logits [1, w, V] and tapped rows [1, w, taps * d] (lazy).

        The cache then holds w more tokens.
        """
        split = nullcontext() if self.attention is None else self.attention.over(tokens.shape[1])
        with split, cache.writing(tokens):
            if self._taps is None:
                return self.model(tokens, cache=cache.entries), None
            with self._taps.recording() as joined:
                logits = self.model(tokens, cache=cache.entries)
                return logits, joined()

    def encode_chat(self, prompt: str) -> list[int]:
        """Token ids of one user turn behind the model's chat template (of the bare text where it has none).

        Raises:
            PromptError: nothing remains after encoding.
        """
        if self.tokenizer.has_chat_template:
            messages = [{"role": "user", "content": prompt}]
            try:
                ids = list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True))
            except Exception as error:  # templates are programs of the checkpoint's
                raise PromptError(
                    f"the model's chat template cannot render this prompt ({_first_line(error)}); fetch the model again"
                ) from error
        else:
            ids = list(self.tokenizer.encode(prompt))
        if not ids:
            raise PromptError("the prompt is empty after tokenization; give it some text")
        return ids


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no details'}"
