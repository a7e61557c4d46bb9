"""The report: what JSON holds, and what a bug report may not hold."""

import unicodedata
from dataclasses import replace

from dspark.doctor import schema
from dspark.doctor.check import Check, Subject
from dspark.doctor.pairs import PairState
from dspark.doctor.report import Report

SUBJECT = Subject("models.1", "Models")


def report(*checks: Check, models: tuple[PairState, ...] = ()) -> Report:
    return Report(True, "0.1.0", "2026-10-01T00:00:00+00:00", checks, models)


def redacted(text: str, homes: set[str], names: set[str]) -> str:
    return report(SUBJECT.ok(text)).redacted(homes, names).checks[0].seen


def test_the_schema_in_the_repository_is_that_of_the_types():
    assert schema.shipped() == schema.generated()


def test_the_schema_names_every_field():
    made = report(SUBJECT.ok("x")).as_dict()
    described = schema.shipped()
    assert set(described["required"]) == set(made)
    assert set(described["$defs"]["Check"]["required"]) == set(made["checks"][0])


def test_n7_redaction_of_homes_users_and_hosts():
    seen = "/Users/maria/models of Maria on marias-mac"
    check = SUBJECT.warn(seen, "see /Users/jo/x", "ls /Users/maria-old /Users/maria")
    found = report(check).redacted({"/Users/maria"}, {"maria", "marias-mac"}).checks[0]
    assert found.seen == "~/models of redacted on redacted"
    assert found.todo == "see ~/x"
    assert found.command == "ls ~ ~"
    assert found.id == "models.1"


def test_a_name_within_a_word_stays():
    assert redacted("/opt/ann/annual ann", set(), {"ann"}) == "/opt/redacted/annual redacted"


def test_both_ways_of_writing_an_accent():
    name = "zoé"
    text = f"/data/{unicodedata.normalize('NFD', name)}/x"
    assert redacted(text, set(), {unicodedata.normalize("NFC", name)}) == "/data/redacted/x"


def test_characters_that_mean_something_to_a_pattern():
    assert redacted("/h/a+b(c)/x", {"/h/a+b(c)/"}, {"a.b"}) == "~/x"


def test_folders_of_models_are_redacted_too():
    pair = PairState("demo", "org/t", None, 1.0, "fits", ("/Users/maria/t",), ("/opt/maria/d",), ("/Users/maria/t",))
    found = report(models=(pair,)).redacted({"/Users/maria"}, {"maria"}).models[0]
    assert found == replace(pair, targets=("~/t",), drafters=("/opt/redacted/d",), too_large=("~/t",))
