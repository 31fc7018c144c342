"""Bundles the libraries of the chat page into `extras/live/page/vendor`, where its files are served from.

python -m tools.page_libraries             # needs npm and its registry
python -m tools.page_libraries --update    # takes the versions that package.json names into package-lock.json

npm compares what it fetches with the hashes in `package-lock.json`. `vendor/manifest.json` has versions, licences and
the hashes of what was made. esbuild bundles; fonts are kept in WOFF2 alone, which every browser reads.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VENDOR = HERE.parents[1] / "extras" / "live" / "page" / "vendor"
ENTRIES = ("text.js", "text.css", "formulas.js", "formulas.css")
OPTIONS = ("--bundle", "--minify", "--format=esm", "--target=es2022", "--legal-comments=none", "--log-level=warning")
FONTS = ("--loader:.woff2=file", "--asset-names=[name]")
OLD_FONT = re.compile(r',\s*url\([^)]*\.(?:woff|ttf)\) format\("[^"]*"\)')


def bundle(folder: Path, vendor: Path, *, updates: bool) -> None:
    """Fills `vendor`; `folder` gets the libraries."""
    for path in HERE.iterdir():
        if path.suffix in {".js", ".css", ".json"}:
            shutil.copy(path, folder)
    npm = [
        "npm",
        "install" if updates else "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--omit-lockfile-registry-resolved",
    ]
    subprocess.run(npm, cwd=folder, check=True)
    if updates:
        shutil.copy(folder / "package-lock.json", HERE)
    katex = folder / "node_modules" / "katex" / "dist" / "katex.css"
    katex.write_text(OLD_FONT.sub("", katex.read_text(encoding="utf-8")), encoding="utf-8")
    command = [folder / "node_modules" / ".bin" / "esbuild", *ENTRIES, *OPTIONS, *FONTS, f"--outdir={vendor}"]
    subprocess.run(command, cwd=folder, check=True)
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    packages = {name: package for name, package in lock["packages"].items() if name and is_used(name, package)}
    (vendor / "LICENSES.txt").write_text(
        "\n".join(licence_of(folder, *item) for item in packages.items()), encoding="utf-8"
    )
    write_manifest(vendor, packages)


def is_used(name: str, package: dict[str, Any]) -> bool:
    """True if some of the package is in the bundle: not types, tools, or what serves katex's command."""
    return not (
        package.get("dev")
        or package.get("optional")
        or "@types" in name
        or Path(name).name in {"commander", "argparse"}
    )


def licence_of(folder: Path, name: str, package: dict[str, Any]) -> str:
    """Returns the package's licence with a heading. Raises `ValueError` if it has none."""
    found = sorted(path for path in (folder / name).iterdir() if path.name.lower().startswith("licen"))
    if not found:
        raise ValueError(f"{name} has no file with its licence")
    text = found[0].read_text(encoding="utf-8").strip()
    return f"== {name.removeprefix('node_modules/')} {package['version']} ({package['license']})\n\n{text}\n"


def write_manifest(vendor: Path, packages: dict[str, dict[str, Any]]) -> None:
    files = sorted(path for path in vendor.iterdir() if path.name != "manifest.json")
    manifest = {
        "made by": "python -m tools.page_libraries",
        "packages": {
            name.removeprefix("node_modules/"): {key: package[key] for key in ("version", "license", "integrity")}
            for name, package in packages.items()
        },
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }
    (vendor / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true")
    updates = parser.parse_args().update
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "vendor")
        made.mkdir()
        bundle(Path(folder), made, updates=updates)
        shutil.rmtree(VENDOR, ignore_errors=True)
        shutil.copytree(made, VENDOR)


if __name__ == "__main__":
    main()
