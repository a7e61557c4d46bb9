"""The "speculators" packaging: backbone under `transformer_layer_config`, taps numbered from 1, reduced vocabularies.

Tensor `d2t` [draft vocabulary] holds offsets: target id = draft id + d2t[draft id].
"""

from typing import Any

from pydantic import Field

from dspark.drafters.config import DrafterConfig
from dspark.drafters.fields import Backbone, Fields, Positive, SequentialHeads, check_taps, parse
from dspark.errors import DrafterFormatError


class _ProposalMethod(Fields):
    speculative_tokens: int | None = None


class _Verifier(Fields):
    name_or_path: str | None = None


class _Settings(Fields):
    algorithm: str | None = None
    proposal_methods: list[_ProposalMethod] = Field(default_factory=list)
    verifier: _Verifier = _Verifier()


class _File(SequentialHeads):
    speculators_model_type: str | None = None
    speculators_config: _Settings = _Settings()
    transformer_layer_config: Backbone
    aux_hidden_state_layer_ids: list[int]
    draft_vocab_size: int = Positive
    block_size: int = Positive
    mask_token_id: int
    sample_from_anchor: bool | None = None


def translate(fields: dict[str, Any]) -> DrafterConfig:
    """Canonical config of a speculators checkpoint.

    Raises:
        DrafterFormatError: another algorithm, a missing field, or a contradiction between fields.
    """
    settings = fields.get("speculators_config") or {}
    algorithm = fields.get("speculators_model_type") or settings.get("algorithm")
    if algorithm != "dspark":
        raise DrafterFormatError(
            f"this is a speculators checkpoint of the {algorithm} algorithm; only dspark is supported"
        )
    file = parse(_File, fields, "speculators packaging")
    tokens = next((m.speculative_tokens for m in file.speculators_config.proposal_methods), None)
    if not anchor_predicts(file.block_size, tokens, file.sample_from_anchor):
        raise DrafterFormatError(
            "this drafter's anchor slot predicts nothing (sample_from_anchor false), which is not supported yet"
        )
    backbone = file.transformer_layer_config
    if file.draft_vocab_size > backbone.vocab_size:
        raise DrafterFormatError(
            f"the drafter's draft_vocab_size {file.draft_vocab_size} is above its vocab_size {backbone.vocab_size}"
        )
    return DrafterConfig(
        kind="dspark",
        packaging="speculators",
        block=file.block_size,
        taps=check_taps([i - 1 for i in file.aux_hidden_state_layer_ids]),
        mask_id=file.mask_token_id,
        target_layers=None,
        draft_vocabulary=file.draft_vocab_size,
        markov=file.markov(),
        confidence=file.confidence(),
        quantization=fields.get("quantization"),
        verifier=file.speculators_config.verifier.name_or_path,
        **backbone.canonical(),
    )


def anchor_predicts(block_size: int, speculative_tokens: int | None, sample_from_anchor: bool | None) -> bool:
    """Whether slot 0 makes the first proposal (a block of n slots then proposes n), or is unused (n - 1).

    The number of speculative tokens decides first, then the explicit field; a file with neither was written before the
    field existed, when the anchor slot was unused.

    Raises:
        DrafterFormatError: the two contradict each other, or the count fits neither reading.
    """
    if speculative_tokens is None:
        return bool(sample_from_anchor)
    if speculative_tokens not in (block_size, block_size - 1):
        raise DrafterFormatError(
            f"the drafter proposes {speculative_tokens} tokens with a block_size of {block_size}; one of them is wrong"
        )
    by_count = speculative_tokens == block_size
    if sample_from_anchor is not None and sample_from_anchor != by_count:
        raise DrafterFormatError(
            f"the drafter's sample_from_anchor {sample_from_anchor} contradicts its {speculative_tokens} tokens "
            f"of a block of {block_size}"
        )
    return by_count
