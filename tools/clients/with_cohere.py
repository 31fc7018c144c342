"""Cohere's client, for embeddings and reranking."""

import cohere
from steps import MODEL, URL, check

client = cohere.ClientV2(api_key="none", base_url=URL)


def embed():
    reply = client.embed(
        model=MODEL, texts=["one", "two"], input_type="search_document", embedding_types=["float", "base64"]
    )
    check(len(reply.embeddings.float_) == len(reply.embeddings.base64) == 2, "no vectors")
    check(reply.meta.billed_units.input_tokens, "no usage")
