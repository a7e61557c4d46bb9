"""Generated requests, well and badly meant, to every operation of /openapi.json: no answer breaks the document.

A few dozen; with MLX_DSPARK_FULL_FUZZ=1 more than two thousand.
"""

import os
import threading

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from live import served
from wires import eventually

from dspark.doctor import Report
from dspark.server.schema import DESCRIBED

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install schemathesis")

CASES = 120 if os.environ.get("MLX_DSPARK_FULL_FUZZ") else 3
# What a field means beyond its type (a tool by its name, a format that can be enforced) no document can hold; the
# statuses above 500 are looked at here.
NOT_CHECKED = ("positive_data_acceptance", "not_a_server_error")
LOADING = ("/admin/load", "/admin/load/cancel", "/admin/unload")
VARIED = [(method, path) for (method, path), told in DESCRIBED.items() if told.body or told.query]
PLAIN = sorted(set(DESCRIBED) - set(VARIED))


@pytest.fixture(scope="module")
def quiet():
    """No look at the network, and none at the whole machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("dspark.doctor.examine", lambda address: Report(True, "1", "today", (), ()))
        yield


@pytest.fixture(scope="module")
def answering(pair, own_home, quiet):
    own = {"mode": "dspark", "max_draft": 3, "default_max_tokens": 2, "max_tokens_cap": 2}
    with served(model=pair[0], drafter=pair[1], **own) as live:
        yield live


@pytest.fixture(scope="module")
def empty(own_home, quiet):
    """Where models are loaded, none is, so that none goes while another operation needs it."""
    with served(load=False) as live:
        yield live


@pytest.fixture
def operation(request, method, path):
    live = request.getfixturevalue("empty" if path in LOADING else "answering")
    document = live.get("/openapi.json")
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=live.url)
    return schema[path if path in document["paths"] else f"/v1{path}"][method]


def check(case):
    """Send it, and compare the answer with what the document says of it."""
    from schemathesis.checks import CHECKS

    response = case.call(timeout=60)
    assert response.status_code < 500, response.text
    case.validate_response(response, excluded_checks=CHECKS.get_by_names(NOT_CHECKED))


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), VARIED)
def test_no_generated_request_gets_an_answer_that_is_not_in_the_document(operation, mode):
    @given(case=operation.as_strategy(schemathesis.GenerationMode(mode)))
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case):
        check(case)

    send()


@pytest.mark.parametrize(("method", "path"), PLAIN)
def test_what_takes_nothing_answers_as_the_document_says(request, operation, path):
    if path == "/events":  # they end with the model
        telemetry = request.getfixturevalue("answering").app.telemetry

        def hang_up():
            assert eventually(lambda: telemetry._readers)
            telemetry.hang_up()

        threading.Thread(target=hang_up, daemon=True).start()
    check(operation.Case(path_parameters={"id": "tiny-target"} if "{id}" in path else None))
