"""MPNet: BERT without token types, whose layers add the same biases by distance to their scores."""

import re
from dataclasses import replace

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import bert
from scheduler_proc.computing.model.families.family import Family, Source, renamed

NUM_UNUSED = 2
"""Positions begin at 2, whatever `pad_token_id` is."""

NAMES = {
    "attention.self.query": "attention.attn.q",
    "attention.self.key": "attention.attn.k",
    "attention.self.value": "attention.attn.v",
    "attention.output.dense": "attention.attn.o",
    "attention.output.LayerNorm": "attention.LayerNorm",
}
"""Names of BERT, and those of MPNet in their place."""


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    num_buckets = hf_config.choice("relative_attention_num_buckets", [32], 32)
    model = bert.describe(hf_config, max_model_len, num_unused=NUM_UNUSED, num_types=0)
    return replace(model, num_token_types=0, num_buckets=num_buckets)


def list_sources(model: ModelDescription) -> list[Source]:
    attention = model.find(AttentionDescription)[0]
    bias, shape = "mpnet.encoder.relative_attention_bias.weight", (model.num_buckets, attention.num_heads)
    sources = bert.list_sources(model, "mpnet.", "classifier.out_proj", "classifier.dense")
    return [*renamed(sources, NAMES), Source(bias, shape, "position_bias", change="transposed")]


FAMILY = Family(
    architectures=tuple(f"MPNet{task}" for task in bert.TASKS),
    model_types=("mpnet",),
    describe=describe,
    list_sources=list_sources,
    prefix="mpnet.",
    ignored=re.compile(r"(mpnet\.)?(embeddings\.position_ids|pooler\..*)|lm_head\..*"),
)
