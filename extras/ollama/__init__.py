"""Ollama's API: `/api/chat`, `/api/generate`, `/api/tags` and what else its clients call."""

from runtime.extras import Extra

EXTRA = Extra(name="ollama", frontend="extras.ollama.part")
