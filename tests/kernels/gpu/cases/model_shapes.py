"""The models whose shapes the Triton kernels are compiled for in tests, and measured with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    embedding_size: int
    mlp_size: int
    vocab_size: int

    @property
    def queries_a_head(self) -> int:
        return self.num_heads // self.num_kv_heads


MODEL_SHAPES = {
    "GPT-2 124M": ModelShape(12, 12, 64, 768, 3072, 50257),
    "Qwen3-0.6B": ModelShape(16, 8, 128, 1024, 3072, 151936),
    "Llama-3-8B": ModelShape(32, 8, 128, 4096, 14336, 128256),
    "Qwen3-14B": ModelShape(40, 8, 128, 5120, 17408, 151936),
}

HEADS_OF_256 = ModelShape(16, 8, 256, 2048, 8192, 256000)
HEADS_OF_512 = ModelShape(16, 2, 512, 2816, 2112, 262144)
"""The widest heads of published models, which need launches of their own."""

WIDE_SHAPES = {"heads of 256": HEADS_OF_256, "heads of 512": HEADS_OF_512}

VOCAB_SIZES = sorted({shape.vocab_size for shape in MODEL_SHAPES.values()})
