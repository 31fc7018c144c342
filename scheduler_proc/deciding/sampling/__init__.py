"""What requests ask of their next tokens: logits processing, grammars, logprobs, and the end of an output."""
