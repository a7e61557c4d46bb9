"""What the host does in a round does not grow with the context: counted at 1k and at 32k, on the same pair."""

import sys
import tracemalloc

import mlx.core as mx
import pytest
from prefix.pairs import tokens
from tiny import write_head, write_llama

from dspark.decoding.events import RoundCommitted
from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.prefix.lease import Lease
from dspark.prefix.options import PrefixOptions

SHORT, LONG = 1_000, 32_000
ROUNDS = 6


class Watched(list):
    """A list that counts its elements that are read, whoever reads them."""

    read = 0

    def __getitem__(self, at):
        Watched.read += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)


def _counted(name):
    plain = getattr(list, name)

    def method(self, *args):
        Watched.read += len(self)
        return plain(self, *args)

    return method


for _name in ("__iter__", "__add__", "__contains__", "__eq__", "index", "count", "copy"):
    setattr(Watched, _name, _counted(_name))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    root = tmp_path_factory.mktemp("long")
    target = write_llama(root / "target", max_position_embeddings=2 * LONG)
    engine = Engine()
    kept = PrefixOptions(limit_bytes=1 << 40)
    engine.load(LoadOptions(str(target), str(write_head(root / "head")), memory_guard=False, prefix=kept))
    return engine


def hold(engine, length):
    """A conversation of that length, as if it had been read."""
    pair, text = engine._pair, tokens(length)
    cache, context = pair.target.new_cache(), pair.drafter.new_context()
    for entry in cache.entries:
        entry.keys, entry.values = mx.zeros((1, 2, length, 8)), mx.zeros((1, 2, length, 8))
        entry.offset = length
    cache._stand_at(length)
    rows = mx.zeros((1, 2, length, 8))
    context.resume({"layers": [(rows, rows) for _ in context.layers], "pending": []})
    engine.prefix_cache.shed("all")
    engine.prefix_cache.give_back(Lease(), list(text), cache, context)
    return [*text, 5]


def rounds(engine, length, request):
    """For each of the first rounds: bytecodes run, bytes allocated in between, and elements read of the prompt."""
    decoding = engine.start(Request(hold(engine, length), 100, **request))
    stream = engine.run(decoding)
    assert next(stream).processed == length, "nothing is left to read"
    decoding.sequence.prompt = Watched(decoding.sequence.prompt)
    to_round(stream)  # the first token, and what is built once
    if decoding.sequence.index is not None:
        decoding.sequence.index.tokens = Watched(decoding.sequence.index.tokens)
    seen = []
    tracemalloc.start()
    try:
        for _ in range(ROUNDS):
            Watched.read, counter = 0, Counter()
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            sys.settrace(counter)
            to_round(stream)
            sys.settrace(None)
            seen.append((counter.count, tracemalloc.get_traced_memory()[1] - before, Watched.read))
    finally:
        sys.settrace(None)
        tracemalloc.stop()
    stream.close()
    # A list that grows is copied now and then, which is no cost of a round.
    return [sorted(column)[-3] for column in zip(*seen, strict=True)]


class Counter:
    def __init__(self):
        self.count = 0

    def __call__(self, frame, event, argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self


def to_round(stream):
    return next(event for event in stream if isinstance(event, RoundCommitted))


REQUESTS = {
    "plain": {"speculation": SpeculationOptions("baseline")},
    "lookup": {"speculation": SpeculationOptions("lookup", 4)},
    "drafted": {"speculation": SpeculationOptions("dspark", 3, lookup=True), "stop": ("never said",)},
    "penalized": {
        "speculation": SpeculationOptions("dspark", 3, lookup=False),
        "sampling": Sampling(temperature=0.8, seed=1, repetition_penalty=1.2, top_logprobs=2),
    },
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_round_costs_the_host_the_same_at_any_depth(engine, kind):
    short, long = (rounds(engine, length, REQUESTS[kind]) for length in (SHORT, LONG))
    for name, near, far in zip(("bytecodes", "bytes", "tokens read"), short, long, strict=True):
        assert far < 2 * near + 1_000, f"{name}: {near} at {SHORT} tokens, {far} at {LONG}"
