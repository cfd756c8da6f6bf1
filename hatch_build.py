"""Compiles the packet engine into the wheel, if there is a C compiler where the wheel is built.

The wheel is then one of this platform. Without a compiler it has the C sources only, as it always
does, and the engine is compiled on first use. An editable installation compiles nothing.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags


class EngineBuildHook(BuildHookInterface):
    """Adds the library and its manifest to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library into a temporary folder, from which the wheel is filled."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from orchestration.core.errors import NotReadyError
        from orchestration.datapath import engine_build

        self._folder = tempfile.TemporaryDirectory(prefix="closloop-engine-")
        folder = Path(self._folder.name)
        try:
            engine_build.build_into(
                folder, engine_build.engine_source(), engine_build.find_compiler()
            )
        except NotReadyError as error:
            self.app.display_warning(f"the wheel gets no library: {error}")
            return
        inside = engine_build.ENGINE.relative_to(self.root)
        for name in (engine_build.LIBRARY, engine_build.MANIFEST):
            build_data["force_include"][str(folder / name)] = str(inside / name)
        build_data["pure_python"] = False
        # It needs this platform's C library, and no Python's.
        build_data["tag"] = f"py3-none-{next(platform_tags())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self._folder.cleanup()
