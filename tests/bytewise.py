"""A tokenizer that can say any text: one token a byte, some longer pieces, and marks that are no text."""

from collections.abc import Sequence
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EOS = "<|end|>"
MERGES = ["tr", "ue", "in", "er", "na", "me", '":', ', "', '{"', '"}']


def bytewise(marks: Sequence[str] = (), **wrapper: Any) -> TokenizerWrapper:
    """Ids: 0..255 bytes in byte-level order, then pairs, then the end of a sequence, then `marks`."""
    vocabulary = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pairs = [tuple(pair.replace(" ", "Ġ")) for pair in MERGES if len(pair) == 2]
    vocabulary |= {"".join(pair): 256 + i for i, pair in enumerate(pairs)}
    core = Tokenizer(models.BPE(vocabulary, pairs))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=EOS)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return TokenizerWrapper(tokenizer, eos_token_ids=[tokenizer.eos_token_id], **wrapper)
