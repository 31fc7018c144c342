"""Builds the C kernels during installation, so that the first start need not; pyproject.toml has all other settings.

A machine without a compiler gets the package without them: the server tries again at its start, and logs what is lost.
"""

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build does not run in the package's directory

from kernels.cpu.build import (  # noqa: E402
    PREBUILT,
    BuildError,
    build,
    build_kept,
    can_keep,
    find_compiler,
    prebuilt_name,
)


class BuildKernels(build_py):
    """Puts a library into `kernels/cpu/prebuilt` of the installed package; with --editable, of this checkout."""

    def run(self) -> None:
        super().run()
        places = ROOT if self.editable_mode else Path(self.build_lib)
        folder = places / PREBUILT.relative_to(ROOT)
        try:
            for old in folder.glob("kernels-*.so"):
                old.unlink()
            folder.mkdir(parents=True, exist_ok=True)
            if can_keep():
                shutil.copyfile(build_kept(find_compiler()), folder / prebuilt_name())
            else:
                build(find_compiler(), folder / prebuilt_name())
        except (BuildError, OSError) as error:
            self.warn(f"the C kernels are not built: {error}")


class PlatformDistribution(Distribution):
    """A distribution for one kind of machine, since it contains a library."""

    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildKernels}, distclass=PlatformDistribution)
