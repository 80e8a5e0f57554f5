"""Hatchling's build hook: it compiles the timing wheel's core (`_wheel_c.pyx`) if Cython and a C compiler are there.

A package without the compiled core uses the core in Python. For a wheel file the hook compiles into a temporary folder.
For an editable install it puts the compiled module beside its source, where git ignores it. The name of the module has
Python's version, so several versions of Python can share one source tree. The hook compiles nothing if the environment
has `WHEEL_SCHED_PURE=1`, or on a free-threaded Python: the compiled core depends on the GIL and would turn it on.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("wheel_sched", "wheel", "_wheel_c.pyx")


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]  # the type of the build's configuration is not needed
    """Hatchling calls `initialize` before each build, and `finalize` after it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the core, and add it to the build. If this fails, show a warning: the build continues without it."""
        if self.target_name != "wheel":
            return
        name = f"_wheel_c{sysconfig.get_config_var('EXT_SUFFIX')}"
        beside_the_source = Path(self.root, SOURCE).with_name(name)
        if version == "editable":
            beside_the_source.unlink(missing_ok=True)  # an old one, which may not fit its source, would be imported
        if os.environ.get("WHEEL_SCHED_PURE") == "1" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            return
        self._scratch = tempfile.mkdtemp(prefix="wheel-sched-core-")
        try:
            built = compiled(Path(self.root, SOURCE), Path(self._scratch))
        except (Exception, SystemExit) as error:  # a compiler that fails must not make the installation fail
            self.app.display_warning(f"the compiled timing wheel was left out, the pure one serves: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            shutil.copy(built, beside_the_source)
        else:
            build_data["force_include"][str(built)] = str(SOURCE.with_name(name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder in which `initialize` compiled."""
        shutil.rmtree(getattr(self, "_scratch", ""), ignore_errors=True)


def compiled(source: Path, folder: Path) -> Path:
    """Compile `source`, and write all files that this makes into `folder`. Returns the path of the extension module."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extension = Extension("wheel_sched.wheel._wheel_c", [str(source)], extra_compile_args=_flags())
    modules = cythonize([extension], build_dir=str(folder / "c"), quiet=True, force=True)
    distribution = Distribution({"ext_modules": modules})
    command = distribution.get_command_obj("build_ext")
    command.build_lib = str(folder / "lib")
    command.build_temp = str(folder / "o")
    command.ensure_finalized()
    command.run()
    return Path(command.get_ext_fullpath("wheel_sched.wheel._wheel_c"))


def _flags() -> list[str]:
    return [] if sys.platform == "win32" else ["-O3", "-g0", "-Wno-unused-function"]
