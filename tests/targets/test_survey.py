"""The survey of mlx-lm's model types, against what the probe finds on built models."""

from families import FAMILIES, family

from dspark.targets.probe import rollback_kind
from dspark.targets.survey import survey


def test_the_survey_says_of_every_type_what_the_probe_finds():
    found = {support.model_type: support for support in survey()}
    assert len(found) > 100
    assert {s.method for s in found.values()} <= {"trim", "recorded", "replay", "refused"}
    assert [s.model_type for s in found.values() if s.method == "refused" and "import" not in s.refusal] == []
    for name in FAMILIES:
        assert found[name].method == rollback_kind(family(name)), name
