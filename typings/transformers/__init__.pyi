# Who imports transformers gets `Any`: reading its sources would take a third of the time that checking types takes.
from typing import Any

def __getattr__(name: str) -> Any: ...
