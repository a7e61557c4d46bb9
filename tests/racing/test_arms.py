import pytest
from scripted import ScriptedDecoder

from dspark.decoding.request import SpeculationOptions
from dspark.errors import UsageError
from dspark.racing.arms import Arm, alike, default_arms, enter, parse, parse_all


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("baseline", SpeculationOptions("baseline")),
        ("lookup", SpeculationOptions("lookup")),
        ("auto", SpeculationOptions("auto")),
        ("dflash:cap=auto", SpeculationOptions("dflash", cap="auto")),
        ("dspark:lookup=on", SpeculationOptions("dspark", lookup=True)),
        ("dspark:confidence=0", SpeculationOptions("dspark", confidence=0.0)),
        (
            "dspark:cap=4,lookup=off,confidence=0.3",
            SpeculationOptions("dspark", cap=4, lookup=False, confidence=0.3),
        ),
    ],
)
def test_an_arm_reads_as_written(text: str, options: SpeculationOptions) -> None:
    assert parse(text) == Arm(text, options)


def test_a_label_is_one_line_of_printable_text() -> None:
    assert parse(" dspark\x1c:\tcap = 4,\nlookup=on ").label == "dspark : cap = 4, lookup=on"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", "baseline, lookup, dspark"),
        ("", "baseline, lookup, dspark"),
        ("dspark:", "cap=4"),
        ("dspark:cap", "cap=4"),
        ("dspark:cap=", "cap=4"),
        ("dspark:cap=4,,lookup=on", "'nothing'"),
        ("dspark:width=4", "'width'"),
        ("dspark:cap=4,cap=5", "twice"),
        ("dspark:cap=0", "cap=0"),
        ("dspark:cap=-1", "cap=-1"),
        ("dspark:cap=3.5", "cap=3.5"),
        ("dspark:cap=" + "9" * 5000, "whole number"),
        ("dspark:cap=²", "whole number"),
        ("dspark:confidence=1.5", "from 0 to 1"),
        ("dspark:confidence=-0.1", "from 0 to 1"),
        ("dspark:confidence=nan", "from 0 to 1"),
        ("dspark:confidence=high", "from 0 to 1"),
        ("dspark:lookup=yes", "on or off"),
        ("baseline:cap=4", "just baseline"),
        ("lookup:lookup=on", "lookup has no setting"),
        ("dflash:confidence=0.5", "dflash has no setting"),
    ],
)
def test_junk_is_refused_with_what_is_possible(text: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_plain_decoding_comes_first_and_is_added_where_nobody_named_it() -> None:
    assert [arm.label for arm in parse_all(["dspark"])] == ["baseline", "dspark"]
    assert [arm.label for arm in parse_all(["dspark", "baseline"])] == ["baseline", "dspark"]


def test_the_same_arm_twice_gets_a_label_of_its_own() -> None:
    arms = parse_all(["baseline", "dspark", "dspark", "baseline"])
    assert [arm.label for arm in arms] == ["baseline", "dspark", "dspark#2", "baseline#2"]
    assert arms[1].options == arms[2].options


def test_default_arms_are_every_mode_and_auto_only_if_it_is_another() -> None:
    decoder = ScriptedDecoder()
    assert [arm.label for arm in default_arms(decoder.modes, decoder)] == ["baseline", "lookup", "dspark"]
    parked = ScriptedDecoder()
    parked.resolve = lambda options: ScriptedDecoder().resolve(  # type: ignore[method-assign]
        SpeculationOptions("dspark", cap=2) if options.mode == "auto" else options
    )
    assert [arm.label for arm in default_arms(parked.modes, parked)] == ["baseline", "lookup", "dspark", "auto"]


def test_arms_that_resolve_alike_are_found() -> None:
    entrants = enter(parse_all(["dspark", "auto", "lookup", "dspark:lookup=on", "dspark:cap=3"]), ScriptedDecoder())
    assert alike(entrants) == [["dspark", "auto", "dspark:lookup=on"]]


def test_a_mode_that_the_pair_lacks_is_a_usage_error_that_names_the_arm() -> None:
    with pytest.raises(UsageError, match=r"--arm dflash: .*baseline, lookup, dspark"):
        enter(parse_all(["dflash"]), ScriptedDecoder())
