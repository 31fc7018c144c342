"""What hinders people in a page, as axe finds it."""

import importlib.util
from pathlib import Path

import pytest

from tests.ring.devtools import BrowserPage


def violations(page: BrowserPage, scheme: str, width: int) -> list[object]:
    """Returns the violations at this width and colour scheme, in which the page stays."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs the package axe-core-python, for the axe.min.js in it")
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.run(f"{Path(found.origin).with_name('axe.min.js').read_text(encoding='utf-8')}\n0")
    assert page.run("document.documentElement.scrollWidth") <= width
    return page.run(
        """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
        .map(({id, nodes}) => [id, nodes.map(({target, failureSummary}) => [target, failureSummary])]))"""
    )
