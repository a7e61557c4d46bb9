"""Field reports about silent differences, on tiny real models: whatever is speculated, the answer is the plain one."""

import pytest
from tiny import write_head, write_llama

from dspark.decoding import lookup
from dspark.decoding.events import Finished
from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.engine import Engine, LoadOptions

PLAIN = SpeculationOptions("baseline")
MODES = [SpeculationOptions("lookup"), SpeculationOptions("dspark"), SpeculationOptions("dspark", cap=5, lookup=False)]


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    root = tmp_path_factory.mktemp("pair")
    target = write_llama(root / "target", max_position_embeddings=4096)
    return LoadOptions(model=str(target), drafter=str(write_head(root / "head")))


@pytest.fixture(scope="module")
def engine(options):
    engine = Engine()
    engine.load(options)
    return engine


def last_of(stream):
    *_, last = stream
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("length", [1, 2, 2048, 2049])
def test_the_first_token_comes_from_the_same_logits_bit_by_bit(engine, length):
    """A20: every mode splits the prompt alike."""
    prompt = [3 + (7 * i + i // 9) % 50 for i in range(length)]
    sampling = Sampling(top_logprobs=20)
    first = [
        last_of(engine.generate(Request(prompt, max_tokens=1, speculation=mode, sampling=sampling))).logprobs
        for mode in [PLAIN, *MODES]
    ]
    assert len(first[0]) == 1 and all(other == first[0] for other in first)


@pytest.mark.parametrize("mode", [PLAIN, *MODES], ids=str)
def test_interleaved_requests_do_not_touch_each_other(options, mode):
    """A25, A26: a greedy request beside a seeded one, step by step in one process, say what they say alone."""
    engines = [Engine(), Engine()]
    for engine in engines:
        engine.load(options)
    requests = [
        Request([5, 9, 33], max_tokens=60, speculation=mode),
        Request([5, 9, 33], max_tokens=60, speculation=mode, sampling=Sampling(temperature=1.0, seed=7)),
    ]
    alone = [last_of(engine.generate(request)).tokens for engine, request in zip(engines, requests, strict=True)]
    streams = [engine.generate(request) for engine, request in zip(engines, requests, strict=True)]
    together = [(), ()]
    open_streams = {0, 1}
    while open_streams:
        for which in sorted(open_streams):
            event = next(streams[which], None)
            if event is None:
                open_streams.discard(which)
            elif isinstance(event, Finished):
                together[which] = event.tokens
    assert together == alone and alone[0] != alone[1]


@pytest.mark.parametrize("shortest", [2, 4, 8])
def test_lookup_matches_of_any_length_change_nothing(engine, monkeypatch, shortest):
    """A29: a prompt full of the same openings, where short matches are often wrong."""
    monkeypatch.setattr(lookup, "MIN_MATCH_TOKENS", shortest)
    call = [40, 41, 42, 10, 11]
    prompt = [*call, 5, 6, *call, 7, 8, *call, 9, 3, *call]
    plain = last_of(engine.generate(Request(prompt, max_tokens=60, speculation=PLAIN)))
    for mode in (
        SpeculationOptions("lookup", cap=32),
        SpeculationOptions("lookup"),
        SpeculationOptions("dspark", cap=4),
    ):
        assert last_of(engine.generate(Request(prompt, max_tokens=60, speculation=mode))).tokens == plain.tokens


def test_experts_switch_lookup_off_where_nothing_was_measured():
    """Free guesses wake more experts; a pair that is not in the registry starts without them."""
    from dspark.pair import _has_experts

    assert _has_experts({"num_experts": 128, "num_experts_per_tok": 8})
    assert _has_experts({"text_config": {"n_routed_experts": 64}})
    assert not _has_experts({"num_experts": 1}) and not _has_experts({"hidden_size": 64, "num_experts_per_tok": None})
