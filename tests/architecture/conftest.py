"""What reads the sources stands in this folder, which is no package."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from imports import Sources
from trees import product


def pytest_runtest_teardown(item, nextitem):
    """Forget the product's trees after the last test of this folder."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        product.cache_clear()


@pytest.fixture
def made(tmp_path):
    """Return what makes a tree of some files, given as names and texts, and reads it."""

    def make(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                (path.parent / "__init__.py").touch()
            path.write_text(text)
        return Sources(tmp_path)

    return make
