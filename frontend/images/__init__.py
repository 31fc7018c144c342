"""Images of requests: from the parts of a body to files that the encoder reads, checked on the way."""
