import json
from pathlib import Path
from typing import Any

import pytest

from extras.embeddings.heads import class_activation
from messages.config.pooling import DenseFacts, PoolingFacts, choose_dtype
from messages.errors import BootError
from runtime.pooling_files import read_pooling_facts

BERT = {"architectures": ["BertModel"], "model_type": "bert", "max_position_embeddings": 512}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 4096}
GEMMA = {"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "use_bidirectional_attention": True}
ST = "sentence_transformers.models."


def write(directory: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(content))
    return directory


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": ST + kind}
        for i, kind in enumerate(kinds)
    ]


def read(directory: Path, config: dict[str, Any], files: dict[str, Any]) -> PoolingFacts:
    facts = read_pooling_facts(write(directory, files), config)
    assert facts is not None
    return facts


def test_a_model_that_generates_has_none_without_such_files(tmp_path: Path):
    assert read_pooling_facts(tmp_path, QWEN3) is None


def test_minilm_as_published(tmp_path: Path):
    files = {
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "tokenizer_config.json": {"model_max_length": 512},
        "config_sentence_transformers.json": {"__version__": {"sentence_transformers": "2.0.0"}},
    }
    facts = read(tmp_path, BERT, files)
    assert (facts.kind, facts.pooling, facts.normalizes, facts.dense) == ("embed", "mean", True, ())
    assert (facts.is_encoder, facts.generates, facts.max_seq_length, facts.num_positions) == (True, False, 256, 512)
    assert choose_dtype("auto", facts) == "float32"
    assert choose_dtype("bfloat16", facts) == "bfloat16"


def test_embeddinggemma_as_published(tmp_path: Path):
    dense = {"in_features": 768, "out_features": 3072, "bias": False}
    dense |= {"activation_function": "torch.nn.modules.linear.Identity"}
    prompts = {"query": "task: search result | query: ", "document": "title: none | text: "}
    files = {
        "modules.json": modules("Transformer", "Pooling", "Dense", "Dense", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "include_prompt": True},
        "2_Dense/config.json": dense,
        "3_Dense/config.json": dense | {"in_features": 3072, "out_features": 768},
        "config_sentence_transformers.json": {
            "prompts": prompts,
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    }
    facts = read(tmp_path, GEMMA | {"torch_dtype": "bfloat16"}, files)
    assert facts.dense == (
        DenseFacts(directory="2_Dense", in_size=768, out_size=3072, activation="identity", has_bias=False),
        DenseFacts(directory="3_Dense", in_size=3072, out_size=768, activation="identity", has_bias=False),
    )
    assert (facts.prompts, facts.default_prompt, facts.is_encoder) == (prompts, None, True)
    assert choose_dtype("auto", facts) == "auto"


def test_qwen3_embedding_and_its_reranker_as_published(tmp_path: Path):
    files = {
        "modules.json": modules("Transformer", "Pooling", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
    }
    facts = read(tmp_path, QWEN3, files)
    assert (facts.kind, facts.pooling, facts.generates, facts.is_encoder) == ("embed", "last", True, False)
    score = {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    }
    files = {
        "modules.json": [*modules("Transformer"), score],
        "1_LogitScore/config.json": {"true_token_id": 9693, "false_token_id": 2152},
    }
    facts = read(tmp_path, QWEN3, files)
    assert (facts.kind, facts.score_token_ids) == (None, (9693, 2152))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {
                "id2label": {"0": "LABEL_0"},
                "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            },
            (("LABEL_0",), "sigmoid"),
        ),
        (
            {"id2label": {"0": "bad", "1": "good"}, "problem_type": "single_label_classification"},
            (("bad", "good"), "softmax"),
        ),
        (
            {"num_labels": 3, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
            (("LABEL_0", "LABEL_1", "LABEL_2"), "identity"),
        ),
        ({}, (("LABEL_0", "LABEL_1"), None)),
    ],
)
def test_labels_of_cross_encoders(tmp_path: Path, fields: dict[str, Any], expected: tuple[Any, Any]):
    config = {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta", "pad_token_id": 1}
    facts = read(tmp_path, {**config, "max_position_embeddings": 514, **fields}, {})
    assert (facts.kind, facts.pooling, facts.num_positions) == ("classify", "cls", 512)
    assert (facts.labels, facts.score_activation) == expected


def test_what_newer_versions_of_sentence_transformers_write(tmp_path: Path):
    """Since 5.4 the function of scores is in a file of its own, and goes before config.json's."""
    own = {"activation_fn": "torch.nn.modules.linear.Identity"}
    config = BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    config |= {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    facts = read(tmp_path, config, {"config_sentence_transformers.json": own})
    assert (facts.score_activation, class_activation(facts)) == ("identity", "identity")
    for name, words in (("torch.nn.modules.activation.Tanh", "activation_fn is .*Tanh"), ("own.Code", None)):
        write(tmp_path, {"config_sentence_transformers.json": {"activation_fn": name}})
        if words is None:
            assert class_activation(read(tmp_path, config, {})) == "sigmoid", "its code is not run"
            continue
        with pytest.raises(BootError, match=words):
            read_pooling_facts(tmp_path, config)
    assert read(tmp_path, BERT, {"config_sentence_transformers.json": {"truncate_dim": 256}}).truncate_dim == 256
    with pytest.raises(BootError, match="truncate_dim is -1"):
        read(tmp_path, BERT, {"config_sentence_transformers.json": {"truncate_dim": -1}})


@pytest.mark.parametrize("num_labels", [1, 3])
def test_regression_has_numbers_and_no_probabilities(tmp_path: Path, num_labels: int):
    config = BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": num_labels}
    assert class_activation(read(tmp_path, config | {"problem_type": "regression"}, {})) == "identity"
    named = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    expected = "identity" if num_labels == 1 else "softmax"
    assert class_activation(read(tmp_path, config | named, {})) == expected


def test_without_files_encoders_have_the_mean(tmp_path: Path):
    facts = read(tmp_path, BERT, {"tokenizer_config.json": {"model_max_length": 1e30}})
    assert (facts.kind, facts.pooling, facts.normalizes, facts.max_seq_length) == ("embed", "mean", False, None)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": modules("Transformer", "CNN")}, "'sentence_transformers.models.CNN' is not supported"),
        ({"modules.json": [{"type": "os.system", "path": ""}]}, "'os.system' is not supported"),
        ({"modules.json": modules("Transformer", "Normalize", "Pooling")}, "must come in the order"),
        ({"modules.json": [{"type": ST + "Transformer", "path": "../elsewhere"}]}, "not a directory of the model"),
        ({"modules.json": {"a": 1}}, "is not supported"),
        ({"1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}}, "cls, mean"),
        ({"1_Pooling/config.json": {"pooling_mode": "mean_sqrt_len_tokens"}}, "mean_sqrt_len_tokens"),
        ({"1_Pooling/config.json": {"include_prompt": False}}, "include_prompt"),
        ({"2_Dense/config.json": {"in_features": 4, "out_features": -1}}, "in_features"),
        ({"2_Dense/config.json": {"in_features": 4, "out_features": 4, "activation_function": "a.B"}}, "a.B"),
        ({"config_sentence_transformers.json": {"prompts": {"a": 1}}}, "prompts"),
        ({"config_sentence_transformers.json": {"default_prompt_name": "query"}}, "'query'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, files: dict[str, Any], message: str):
    usual = {
        "modules.json": modules("Transformer", "Pooling", "Dense"),
        "1_Pooling/config.json": {},
        "2_Dense/config.json": {"in_features": 4, "out_features": 4},
    }
    with pytest.raises(BootError, match=message):
        read(tmp_path, BERT, usual | files)
