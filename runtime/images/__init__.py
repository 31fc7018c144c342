"""How images become tokens, by family: sizes and texts, without pixels."""
