"""One file per model family: its Hugging Face configuration and weight names, translated to ours."""
