"""Puts the packages into one package, `sluice.app`, and builds the C kernels; pyproject.toml has all other settings.

The kernels are built during installation, so that the first start need not. A machine without a compiler, or with
SLUICE_WITHOUT_KERNELS=1, gets the package without them: the server tries again at its start, and logs what is lost. No
wheel is built if a compiler fails.
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build does not run in the package's directory

from kernels.cpu.build import (  # noqa: E402
    INSTALL_TIMEOUT_S,
    PREBUILT,
    WITHOUT,
    BuildError,
    NoCompilerError,
    build,
    build_kept,
    can_keep,
    find_compiler,
    prebuilt_name,
)

APP = "sluice.app"
"""The package around the installed packages: other distributions have a `kernels` or a `messages`, too."""

PROCESSES = ("frontend", "tokenizer_proc", "encoder_proc", "scheduler_proc", "detokenizer_proc")
PACKAGES = find_packages(
    str(ROOT), include=[f"{name}*" for name in (*PROCESSES, "messages", "runtime", "supervisor", "kernels", "extras")]
)
FILES = {"kernels.cpu": ["source/*.c", "source/*.h"], "extras.live": ["page/*", "page/vendor/*"]}


class BuildKernels(build_py):
    """Puts a library into `kernels/cpu/prebuilt` of the installed package; with --editable, of this checkout."""

    def run(self) -> None:
        super().run()
        places = ROOT if self.editable_mode else Path(self.build_lib, *APP.split("."))
        folder = places / PREBUILT.relative_to(ROOT)
        try:
            for old in folder.glob("kernels-*.so"):
                old.unlink()
            if os.environ.get(WITHOUT):
                return self.warn(f"the C kernels are not built: {WITHOUT} is set")
            folder.mkdir(parents=True, exist_ok=True)
            compiler = find_compiler()
            if can_keep():
                shutil.copyfile(build_kept(compiler, INSTALL_TIMEOUT_S), folder / prebuilt_name())
            else:
                build(compiler, folder / prebuilt_name(), timeout_s=INSTALL_TIMEOUT_S)
        except (BuildError, OSError) as error:
            reason = f"the C kernels are not built: {error}"
            if not self.editable_mode and not isinstance(error, NoCompilerError):
                raise CompileError(f"{reason}. Name another C compiler with CC, or set {WITHOUT}=1") from None
            self.warn(reason)


class PortableWheel(bdist_wheel):
    """A wheel for every version of Python, on machines with this C library or a later one."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if name == "glibc":
            platform = platform.replace("linux_", f"manylinux_{version.replace('.', '_')}_", 1)
        return "py3", "none", platform  # the library uses nothing of Python


class PlatformDistribution(Distribution):
    """A distribution for one kind of machine, since it contains a library."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    packages=["sluice", *(f"{APP}.{name}" for name in PACKAGES)],
    package_dir={"sluice": "sluice", APP: ".", **{f"{APP}.{name}": name.replace(".", "/") for name in PACKAGES}},
    py_modules=[f"{APP}.launch"],
    package_data={f"{APP}.{name}": files for name, files in FILES.items()},
    cmdclass={"build_py": BuildKernels, "bdist_wheel": PortableWheel},
    distclass=PlatformDistribution,
)
