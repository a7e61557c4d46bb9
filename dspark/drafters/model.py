"""The tensors of a drafter checkpoint, under the names that all packagings are translated to."""

from dspark.drafters.backbone import Backbone
from dspark.drafters.confidence import ConfidenceHead
from dspark.drafters.config import DrafterConfig
from dspark.drafters.markov import markov_head
from dspark.drafters.selector import CandidateSelector


class DrafterModel(Backbone):
    """The backbone and whichever heads the config has."""

    def __init__(self, config: DrafterConfig, vocabulary: int) -> None:
        """`vocabulary` is the target's, for the tables that are indexed by its ids."""
        super().__init__(config)
        draft_vocabulary = config.draft_vocabulary or vocabulary
        if config.markov is not None:
            self.markov_head = markov_head(config.markov, config.hidden_size, vocabulary, draft_vocabulary)
        if config.confidence is not None:
            rank = config.markov.rank if config.markov else 0
            self.confidence_head = ConfidenceHead(config.confidence, config.hidden_size, rank)
        if config.selector is not None:
            self.candidate_selector = CandidateSelector(config.selector, config.hidden_size, vocabulary)
