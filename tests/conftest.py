"""Tests marked `kernel` need the virtual-time kernel: skipped without it, but in CI they fail."""

import os

import pytest

NO_KERNEL = "no virtual-time kernel: build it with `closloop kernel build`"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("kernel") is None:
        return
    from orchestration.backends.emulated.kernel import find_kernel

    if find_kernel() is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NO_KERNEL)
        pytest.skip(NO_KERNEL)
