"""A tokenizer of single bytes that can carry any chat template and the markup of any family of models."""

import importlib
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What Qwen's templates do, in few words: tools, past calls, a switch for thinking.
HERMES = (
    "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# What Gemma's and Mistral's do: no system turn, user and assistant in turn, or an error.
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<turn>{{ m.role }}\n{{ m.content | trim }}</turn>\n{% endfor %}<turn>model\n"
)
THINK = ("<think>", "</think>")


def chat_tokenizer(
    template: str | None = CHATML, *, tokens: tuple[str, ...] = (), family: str | None = None, **more: Any
) -> TokenizerWrapper:
    """One token a byte, one for each of `tokens`; `family` is a module of mlx-lm's tool parsers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<|im_end|>", *tokens)])
    fast = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    fast.chat_template = template
    if family is not None:
        parser = importlib.import_module(f"mlx_lm.tool_parsers.{family}")
        more |= {
            "tool_parser": parser.parse_tool_call,
            "tool_call_start": parser.tool_call_start,
            "tool_call_end": parser.tool_call_end,
        }
    return TokenizerWrapper(fast, eos_token_ids=[fast.eos_token_id], **more)
