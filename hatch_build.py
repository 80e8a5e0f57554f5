"""The build compiles the timing wheel's core when Cython and a C compiler are there; without them the pure one serves.

A wheel gets the extension from a temporary folder, an editable install beside its source (ignored by git; the name
holds Python's version, so that several can share a tree). `WHEEL_SCHED_PURE=1` leaves it out, and so does a
free-threaded Python: the compiled core builds on the GIL and would turn it on.
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


class CompiledCore(BuildHookInterface):  # type: ignore[type-arg]  # of a build's configuration, which is not needed
    """Hatchling's hook."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not; the build goes on either way."""
        if self.target_name != "wheel":
            return
        name = f"_wheel_c{sysconfig.get_config_var('EXT_SUFFIX')}"
        beside_the_source = Path(self.root, SOURCE).with_name(name)
        if version == "editable":
            beside_the_source.unlink(missing_ok=True)  # one that no longer fits its source would be taken silently
        if os.environ.get("WHEEL_SCHED_PURE") == "1" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            return
        self._scratch = tempfile.mkdtemp(prefix="wheel-sched-core-")
        try:
            built = compiled(Path(self.root, SOURCE), Path(self._scratch))
        except (Exception, SystemExit) as error:  # whatever a compiler may do, it must not cost the installation
            self.app.display_warning(f"the compiled timing wheel was left out, the pure one serves: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            shutil.copy(built, beside_the_source)
        else:
            build_data["force_include"][str(built)] = str(SOURCE.with_name(name))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The scratch folder has served."""
        shutil.rmtree(getattr(self, "_scratch", ""), ignore_errors=True)


def compiled(source: Path, folder: Path) -> Path:
    """The extension module made from `source`, somewhere in `folder`."""
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
