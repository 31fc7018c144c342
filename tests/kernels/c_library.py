"""The library of C kernels for tests, built where it is not there yet."""

from pathlib import Path

import pytest

from kernels.cpu.build import BuildError, build, find_compiler, library_path


def built_library() -> Path:
    """Returns its path; skips the test where it cannot be built."""
    try:
        compiler = find_compiler()
        path = library_path(compiler)
        if not path.exists():
            build(compiler, path)
    except BuildError as error:
        pytest.skip(str(error))
    return path
