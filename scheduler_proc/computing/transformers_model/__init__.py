"""Models that are computed by transformers' own code, with this server's attention over the paged KV cache."""
