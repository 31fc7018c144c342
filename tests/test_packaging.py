"""pyproject.toml installs every package of the product with all files that are not Python."""

import fnmatch
import tomllib

from tests.test_import_law import FILES, ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = {file.relative_to(ROOT).parts[0] for file in FILES if file.parent != ROOT}
NOT_INSTALLED = {"__pycache__", "prebuilt"}


def test_every_package_is_installed():
    assert {pattern.removesuffix("*") for pattern in SETTINGS["packages"]["find"]["include"]} == PACKAGES


def test_every_folder_of_a_package_is_a_package():
    folders = {file.parent for file in FILES if file.parent != ROOT}
    assert not [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()]


def test_files_that_are_not_python_are_package_data():
    installed = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, patterns in SETTINGS["package-data"].items()
        for pattern in patterns
    ]
    others = [
        file.relative_to(ROOT).as_posix()
        for package in sorted(PACKAGES)
        for file in (ROOT / package).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc") and not NOT_INSTALLED & set(file.parts)
    ]
    assert others
    assert not [name for name in others if not any(fnmatch.fnmatch(name, pattern) for pattern in installed)]
