"""Makes the vectors that test_encoders.py compares, with sentence-transformers 6.2.

python -m tests.scheduler_proc.computing.model.families.golden.make_encoder_vectors [FOLDER_OF_MINILM]
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

from tests.scheduler_proc.computing.model.families.encoder_checkpoints import ENCODERS, write_encoder
from tests.scheduler_proc.computing.model.families.test_encoders import some_prompts

HERE = Path(__file__).parent


def embed(model: Any, prompt: list[int]) -> torch.Tensor:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        return model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"].float()


def main() -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    vectors: dict[str, torch.Tensor] = {}
    for name, kind in ENCODERS.items():
        with TemporaryDirectory() as folder:
            reference = write_encoder(kind, Path(folder))
            parts = [Part(reference)]
            for index, part in enumerate(kind.modules, start=1):
                part_class = getattr(modules, part.split()[0], None) or getattr(
                    sys.modules["sentence_transformers"].models, part.split()[0]
                )
                parts.append(part_class.load(str(Path(folder) / f"{index}_{part.split()[0]}")))
            vectors[name] = torch.cat([embed(torch.nn.Sequential(*parts), prompt) for prompt in some_prompts()])
    save_file(vectors, HERE / "encoder_vectors.safetensors")
    if len(sys.argv) > 1:
        texts = json.loads((HERE / "minilm_texts.json").read_text())
        found = SentenceTransformer(sys.argv[1], device="cpu").encode(texts)
        save_file({"vectors": torch.from_numpy(found)}, HERE / "minilm_vectors.safetensors")


class Part(torch.nn.Module):
    """The Transformer module, without its tokenizer."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, Any]:
        output = self.model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
        return {**features, "token_embeddings": output.last_hidden_state}


if __name__ == "__main__":
    main()
