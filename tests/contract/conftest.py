"""The backends that keep a contract, each with what it needs here."""

import pytest


@pytest.fixture(
    params=[
        "fluid",
        pytest.param("emulated", marks=pytest.mark.kernel),
        pytest.param("simulated", marks=pytest.mark.ns3),
    ]
)
def backend_name(request):
    return request.param
