import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here boots a guest."""
    for item in items:
        if "tests/emulated" in str(item.path):
            item.add_marker(pytest.mark.kernel)
