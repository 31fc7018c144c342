"""Makes a model's directory of a GGUF file: configuration, tokenizer, chat templates."""
