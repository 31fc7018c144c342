# Whoever imports transformers gets `Any`: to read its sources would take a third of the time that the checks of types take.
from typing import Any

def __getattr__(name: str) -> Any: ...
