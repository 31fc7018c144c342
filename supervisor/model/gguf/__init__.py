"""Makes a model directory in Hugging Face layout of a model in GGUF, so that the processes need not know the format."""
