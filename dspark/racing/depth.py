"""A prompt at depth: so many tokens of other text before the question, exactly, by the model's own tokenizer."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from dspark.errors import PromptError, UsageError
from dspark.racing.decoder import Decoder
from dspark.racing.filler import sentences
from dspark.racing.prompts import Prompt
from dspark.sequences import common_prefix

PROBES = ("Zebras graze", "7 + 5 = ?")  # alike in nothing, so that what their encodings share is the chat template
BRIDGE = "[The chronicle breaks off here.] Leave it aside, and answer what follows. "
TOKENS_A_SENTENCE = 20  # about; where it is fewer, more are drawn


def parse_depths(texts: Sequence[str], flag: str = "--depth", least: int = 0) -> tuple[int, ...]:
    """Depths such as `1k,4096`, each once, in order; `k` is 1024, as context windows are counted. Raises UsageError."""
    depths: dict[int, None] = {}
    for text in ",".join(texts).split(","):
        found = re.fullmatch(r"([0-9]{1,7})(k?)", text.strip().lower(), re.ASCII)
        depth = int(found[1]) * (1024 if found[2] else 1) if found else -1
        if depth < least:
            examples = f"{least}, 4096 or 4k"
            raise UsageError(f"{flag} {text.strip()!r} is no number of tokens; write {examples}, with commas between")
        depths[depth] = None
    return tuple(depths)


def spread_out(prompts: Sequence[Prompt], depths: Sequence[int]) -> list[Prompt]:
    """Every prompt at every depth, the depths inside: neighbours in a race, so that a slow drift reaches all alike."""
    return [replace(prompt, depth=depth) for prompt in prompts for depth in depths]


def encode(decoder: Decoder, prompt: Prompt) -> list[int]:
    """Token ids of `prompt` as one user turn: `prompt.depth` ids more than its text alone has.

    They stand at the head of the turn and differ from prompt to prompt and from depth to depth, from the first on: no
    prompt is the beginning of another, which a prefix cache would answer for.

    Raises:
        PromptError: the tokenizer makes nothing of the text that should stand there.
    """
    question = decoder.encode_chat(prompt.text)
    if prompt.depth == 0:
        return question
    first, second = (decoder.encode_chat(probe) for probe in PROBES)
    head = common_prefix(first, second)
    tail = common_prefix(first[head:][::-1], second[head:][::-1])
    bridge = _inside(decoder.encode_chat(BRIDGE), head, tail)[: prompt.depth]
    filler = _filler(decoder, f"{prompt.depth} {prompt.text}", prompt.depth - len(bridge), head, tail)
    return [*question[:head], *filler, *bridge, *question[head:]]


def _filler(decoder: Decoder, seed: str, wanted: int, head: int, tail: int) -> list[int]:
    count, before = wanted // TOKENS_A_SENTENCE + 1, -1
    while True:
        tokens = _inside(decoder.encode_chat(" ".join(islice(sentences(seed), count))), head, tail)
        if len(tokens) >= wanted:
            return tokens[:wanted]
        if len(tokens) <= before:
            raise PromptError("the model's tokenizer makes no tokens of longer text; race this model without --depth")
        count, before = 2 * count, len(tokens)


def _inside(tokens: Sequence[int], head: int, tail: int) -> list[int]:
    """What stands between the first `head` and the last `tail` ids."""
    return list(tokens[head : len(tokens) - tail])
