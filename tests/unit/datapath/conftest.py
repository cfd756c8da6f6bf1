"""A small engine in the place of the real one."""

import pytest

from orchestration.datapath import engine_build, library

ENGINE_C = """\
#include <stdint.h>
#include "api.h"
#include "../versions.h"

uint32_t cl_api_version(void)
{
	return VERSION;
}
"""
API = (engine_build.ENGINE / "api.h").read_text()


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """The folder of an engine that has only a version, with an empty cache."""
    folder = tmp_path / "engine"
    folder.mkdir()
    (folder / "api.h").write_text(API)
    (folder / "library.c").write_text(ENGINE_C)
    (tmp_path / "versions.h").write_text("#define VERSION CL_API_VERSION\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv(library.BUILD_VARIABLE, raising=False)
    monkeypatch.setattr(engine_build, "ENGINE", folder)
    monkeypatch.setattr(library, "_loaded", {})
    return folder
