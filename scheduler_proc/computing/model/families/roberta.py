"""RoBERTa and XLM-RoBERTa: BERT whose positions begin behind that of padding, and another classification head."""

import re
from functools import partial

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families import bert
from scheduler_proc.computing.model.families.family import Family

KINDS = ("Roberta", "XLMRoberta", "Camembert")


def describe(hf_config: HfConfig, max_model_len: int) -> ModelDescription:
    num_unused = hf_config.count("pad_token_id", 1, least=0) + 1
    return bert.describe(hf_config, max_model_len, num_unused=num_unused)


FAMILY = Family(
    architectures=tuple(f"{kind}{task}" for kind in KINDS for task in bert.TASKS),
    model_types=("roberta", "xlm-roberta", "camembert"),
    describe=describe,
    list_sources=partial(
        bert.list_sources,
        prefix="roberta.",
        classifier_out="classifier.out_proj",
        classifier_dense="classifier.dense",
    ),
    prefix="roberta.",
    ignored=re.compile(r"(roberta\.)?(embeddings\.position_ids|pooler\..*)|lm_head\..*"),
)
