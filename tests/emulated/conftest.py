import pytest

from orchestration.core.engines import ENGINES, PROCESS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here boots a guest, but for those of the packet engine in the process."""
    for item in items:
        if "tests/emulated" not in str(item.path):
            continue
        callspec = getattr(item, "callspec", None)
        if callspec is None or PROCESS not in callspec.params.values():
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Where a test's trials run: in the process, and in the kernel."""
    name: str = request.param
    return name
