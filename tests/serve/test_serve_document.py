"""What is generated from the OpenAPI document breaks nothing."""

from __future__ import annotations

import pytest

from trivium.serve.endpoints import ENDPOINTS

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:a text ends at its limit")
def test_generated_requests_are_answered_or_refused_in_one_shape(served):
    """Requests that fit the document and ones that do not, for every endpoint."""
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi import checks

    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    all_checks = [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
    ]
    limits = settings(
        max_examples=10,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    for path in ENDPOINTS:
        for mode in GenerationMode:
            cases = document[path]["POST"].as_strategy(generation_mode=mode)

            @limits
            @given(case=cases)
            def check(case):
                answer = case.call(timeout=60)
                case.validate_response(answer, checks=all_checks)
                if answer.status_code >= 400:
                    (error,) = answer.json().values()
                    assert set(error) == {"message", "type", "param", "code"}

            check()
