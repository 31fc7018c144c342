"""Tokenizer files from the metadata of a GGUF file."""
