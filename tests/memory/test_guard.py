"""The guard on machines of every size: what it admits, refuses, gives back, and when it does nothing."""

import random
from pathlib import Path

import mlx.core as mx
import pytest
from machines import GB, Clock, Kept, Set
from tiny import write_llama

from dspark.decoding.events import Finished
from dspark.decoding.request import Request, SpeculationOptions
from dspark.engine import Engine, LoadOptions
from dspark.errors import InsufficientMemory
from dspark.machine.ceilings import binding, ceilings
from dspark.machine.darwin import Darwin
from dspark.machine.facts import Limit
from dspark.machine.linux import Linux
from dspark.memory.estimate import PrefillCost
from dspark.memory.guard import POLL_S, MemoryGuard
from dspark.memory.policy import REARM_S
from dspark.targets.footprint import CacheFootprint

COST = PrefillCost(CacheFootprint(100_000, (), 0), 0, 0, 100_000, 0.0)
GIB = 1 << 30


def guard(here, held=0, given_by="all"):
    made = MemoryGuard(here, Clock())
    made.holder = Kept(here, held, given_by)
    return made


def admit(one, tokens, cached=0):
    return one.admit(lambda: COST, tokens, 2048, cached=lambda: cached)


def test_what_fits_is_read_in_whole_chunks():
    assert admit(guard(Set(16 * GB, 8 * GB, "normal")), 4096) == 2048


def test_a_prompt_that_nearly_fits_is_read_in_shorter_chunks_before_anything_is_given_back():
    one = guard(Set(16 * GB, COST.peak(8192, 512) + GB // 2, "normal"), held=GB)
    assert admit(one, 8192) == 512
    assert one.holder.asked == [] and one.report().shortened == 1


def test_k4_what_is_kept_is_given_back_cheapest_first_and_no_further_than_needed():
    one = guard(Set(16 * GB, GB, "normal"), held=GB, given_by="older")
    assert admit(one, 8192) == 2048
    assert one.holder.asked == ["rungs", "older"]


def test_k4_a_prompt_that_would_not_fit_anyway_costs_no_conversation():
    one = guard(Set(16 * GB, GB, "normal"), held=GB)
    with pytest.raises(InsufficientMemory):
        admit(one, 100_000)
    assert one.holder.asked == [] and one.holder.nbytes == GB


def test_a_refusal_names_need_ceiling_and_remedy():
    limit = Limit("the container's memory limit", "raise that limit", 4 * GB, GB)
    with pytest.raises(InsufficientMemory) as caught:
        admit(guard(Set(64 * GB, 32 * GB, "normal", limits=(limit,))), 30_000)
    error = caught.value
    assert (error.status, error.code) == (507, "insufficient_memory")
    text = str(error)
    assert "about 3.0 GB more" in text and "875 MB are left under the container's memory limit of 4.0 GB" in text
    shorter = int(text.split("shorten it to ")[1].split()[0])
    assert "--kv-bits 8" in text and "raise that limit" in text and "\n" not in text
    assert admit(guard(Set(64 * GB, 32 * GB, "normal", limits=(limit,))), shorter) == 256


def test_a_long_prompt_that_is_nearly_all_cached_is_admitted():
    tight = Set(16 * GB, GB, "normal")
    with pytest.raises(InsufficientMemory):
        admit(guard(tight), 40_000)
    assert admit(guard(tight), 40_000, cached=39_000) == 2048


@pytest.mark.parametrize("size_gib", [8, 16, 24, 96, 512])
def test_k7_the_reserve_is_the_same_share_of_every_machine(size_gib):
    found = binding(ceilings(Set(size_gib * GIB, size_gib * GIB // 2)))
    assert found.reserve_bytes == size_gib * GIB // 32
    # Half of the machine's memory free, and three eighths of it asked for: never refused, whatever the size.
    cost = PrefillCost(CacheFootprint(size_gib * GIB * 3 // 8 // 1024, (), 0), 0, 0, 0, 0.0)
    assert guard(Set(size_gib * GIB, size_gib * GIB // 2, "normal")).admit(lambda: cost, 1024, 2048) == 2048


@pytest.mark.parametrize(
    "here",
    [
        Darwin(lambda *command: None, "arm64"),
        Darwin(lambda *command: "kern.memorystatus_vm_pressure_level: 3\n", "arm64"),
        Linux(Path("/nowhere"), "x86_64"),
    ],
    ids=["sysctl missing", "level 3", "no permission"],
)
def test_k8_without_a_reading_the_guard_says_unknown_and_does_nothing(here):
    one = MemoryGuard(here, Clock())
    one.holder = Kept()
    assert one.report().state == "unknown" and one.report().pressure is None
    assert one.admit(lambda: COST, 10**7, 2048) == 2048
    one.border()
    assert one.holder.asked == [] and set(one.report().shed.values()) == {0}


def test_k5_switched_off_it_neither_refuses_nor_sheds_and_says_so():
    one = guard(Set(16 * GB, GB, "critical"), held=GB)
    one.enabled = False
    assert admit(one, 10**6) == 2048
    one.border()
    assert one.holder.asked == [] and one.report().state == "off"


def test_k4_pressure_is_answered_between_rounds_by_fresh_readings():
    clock, here = Clock(), Set(16 * GB, 8 * GB, "normal")
    one = MemoryGuard(here, clock)
    one.holder = Kept(here)
    one.border()
    here.pressure = "warning"
    one.border()
    assert one.report().shed["allocator"] == 0  # not looked at again yet
    clock.now_s += POLL_S
    one.border()
    assert (one.report().shed["allocator"], one.holder.asked) == (1, [])
    clock.now_s += REARM_S
    one.border()
    assert one.holder.asked == ["rungs"]
    here.pressure = "critical"
    clock.now_s += POLL_S
    one.border()
    assert one.holder.asked == ["rungs", "rungs", "older", "all"]


def test_a_container_that_is_nearly_full_counts_as_pressure_although_none_is_reported():
    nearly = Limit("the container's memory limit", "raise that limit", 4 * GB, GB // 16)
    one = guard(Set(64 * GB, 32 * GB, "normal", limits=(nearly,)))
    one.border()
    assert one.holder.asked == ["rungs", "older", "all"]


# The engine.

PROMPT = [random.Random(1).randrange(3, 60) for _ in range(600)]
WIDE = {"max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_llama(tmp_path_factory.mktemp("wide") / "model", **WIDE))


def engine_on(here, folder, **options):
    engine = Engine(MemoryGuard(here))
    engine.load(LoadOptions(folder, **options))
    return engine


def answer(engine, prompt=PROMPT, max_tokens=4):
    *_, last = engine.generate(Request(prompt, max_tokens=max_tokens, speculation=SpeculationOptions("baseline")))
    assert isinstance(last, Finished)
    return last


def test_a_refused_prompt_leaves_the_engine_ready_and_short_ones_are_answered(folder):
    here = Set(16 * GB, 16 * GB // 32 + 100_000, "normal")
    engine = engine_on(here, folder)
    with pytest.raises(InsufficientMemory, match="600 tokens"):
        answer(engine)
    assert answer(engine, PROMPT[:50]).statistics.prompt_tokens == 50
    here.free = 8 * GB  # nothing is latched
    assert answer(engine).statistics.prompt_tokens == 600
    assert engine.memory().guard.refused == 1


def test_shorter_chunks_give_the_same_answer(folder):
    roomy = answer(engine_on(Set(16 * GB, 8 * GB, "normal"), folder), max_tokens=16)
    engine = engine_on(Set(16 * GB, 8 * GB, "normal"), folder)
    engine._guard._here.free = 16 * GB // 32 + engine.prefill_cost().needs(600, 256, ahead=16) + 1000
    tight = answer(engine, max_tokens=16)
    assert engine.memory().guard.shortened == 1
    assert tight.tokens == roomy.tokens


def test_k5_off_stays_off_across_loads_and_is_visible(folder):
    engine = engine_on(Set(16 * GB, GB // 2, "critical"), folder, memory_guard=False)
    engine.load(LoadOptions(folder))
    assert engine.memory().guard.state == "off"
    assert answer(engine).statistics.prompt_tokens == 600
    engine.load(LoadOptions(folder, memory_guard=True))
    assert engine.memory().guard.state == "on"


def test_pressure_during_an_answer_is_met_on_its_own_thread(folder):
    engine = engine_on(Set(16 * GB, 8 * GB, "critical"), folder)
    answer(engine, PROMPT[:20])
    assert set(engine.memory().guard.shed.values()) == {1}


def test_k1_the_wired_limit_is_never_touched(folder, monkeypatch):
    def touched(limit):
        raise AssertionError("the wired limit was set")

    monkeypatch.setattr(mx, "set_wired_limit", touched)
    monkeypatch.setattr(mx.metal, "set_wired_limit", touched, raising=False)
    answer(engine_on(Set(16 * GB, 8 * GB, "critical"), folder))
    root = Path(__file__).parents[2]
    sources = [*(root / "dspark").rglob("*.py"), *(root / "commands").rglob("*.py")]
    assert sources and not [path for path in sources if "set_wired_limit" in path.read_text(encoding="utf-8")]


# What a request says of itself.


def test_only_the_first_generation_after_a_load_is_cold(folder):
    engine = engine_on(Set(), folder)
    assert [answer(engine, PROMPT[:9]).statistics.cold for _ in range(3)] == [True, False, False]
    engine.load(LoadOptions(folder))
    assert answer(engine, PROMPT[:9]).statistics.cold is True


@pytest.mark.parametrize(("before", "after", "told"), [(5, 12, 7), (5, 5, 0), (12, 5, None), (None, 5, None)])
def test_n9_swap_that_went_down_or_is_unknown_is_null(folder, before, after, told):
    class Swapping(Set):
        """Another figure at its second reading."""

        readings = [before, after]  # noqa: RUF012

        def strain(self):
            self.swap = self.readings.pop(0) if self.readings else after
            return super().strain()

    engine = engine_on(Swapping(), folder, memory_guard=False)
    assert answer(engine, PROMPT[:9]).statistics.swap_delta_bytes == told
