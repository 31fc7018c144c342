"""Endpoints of vectors and scores: embeddings, rerank, score, classify, pooling and those of TEI."""

from runtime.extras import Extra

EXTRA = Extra(name="embeddings", frontend="extras.embeddings.part")
