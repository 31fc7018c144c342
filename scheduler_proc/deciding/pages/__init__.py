"""KV-cache pages: free, cached in the radix tree, in tiers below, or held by a request."""
