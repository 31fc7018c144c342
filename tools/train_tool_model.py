"""Trains a small Llama that calls a tool, reads its result and answers, and writes it for transformers and Sluice.

    python -m tools.train_tool_model OUT

It knows some cities and two questions about them (`Dialogue`), in Qwen's chat format with Hermes' calls. Only the
assistant's texts are learned. A run with the same seed on the same machine gives the same model.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from jinja2 import Environment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy

START, END = "<|im_start|>", "<|im_end|>"
CALL_MARKS = ("<tool_call>", "</tool_call>")
VOCAB_SIZE, CONTEXT = 640, 1024
HIDDEN, NUM_LAYERS, NUM_HEADS, MLP = 64, 2, 4, 160
NUM_STEPS, BATCH, WARMUP_STEPS, LEARNING_RATE = 320, 16, 40, 4e-3
NUM_CHECKED = 100
IGNORED = -100

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\nTools:' }}
{%- for tool in tools %} {{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }}){% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

CITIES = (
    *("Paris", "Rome", "Berlin", "Oslo", "Lima", "Cairo", "Tokyo", "Delhi", "Madrid", "Vienna", "Prague", "Athens"),
    *("Dublin", "Lisbon", "Warsaw", "Boston", "Chicago", "Toronto", "Sydney", "Seoul", "Nairobi", "Lagos"),
)
SKIES = ("sunny", "cloudy", "rainy", "windy", "snowy", "foggy")
ASKED = {
    "get_weather": ("How is the weather in {}?", "What is the weather like in {}?", "Is it warm in {}?"),
    "get_time": ("What time is it in {}?", "How late is it in {}?", "Tell me the time in {}."),
}
SYSTEMS = ("You are a helpful assistant.", "Be brief.", "Use the tools.", "You answer questions about cities.")
NO_TOOL = "I have no tool for that."


class Round(NamedTuple):
    """A question, the call that it needs, what the tool returns, and the answer."""

    tool: str
    city: str
    question: str
    result: str

    @property
    def answer(self) -> str:
        return f"It is {self.result} in {self.city}."


def draw_round(rng: random.Random) -> Round:
    tool, city = rng.choice(list(ASKED)), rng.choice(CITIES)
    weather = f"{rng.choice(SKIES)}, {rng.randrange(40)} degrees"
    result = weather if tool == "get_weather" else f"{rng.randrange(24)}:{rng.choice(('00', '15', '30', '45'))}"
    return Round(tool, city, rng.choice(ASKED[tool]).format(city), result)


def draw_chat(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the messages and the tools of one or two rounds; some chats have no tools."""
    names = list(ASKED)
    rng.shuffle(names)
    has_tools = rng.random() < 0.85
    properties = {"properties": {"city": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": properties}} for name in names]
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": " ".join(rng.sample(SYSTEMS, rng.randint(1, 2)))})
    for _ in range(rng.choice((1, 1, 2))):
        asked = draw_round(rng)
        messages.append({"role": "user", "content": asked.question})
        if not has_tools:
            messages.append({"role": "assistant", "content": NO_TOOL})
            continue
        call = {"type": "function", "function": {"name": asked.tool, "arguments": {"city": asked.city}}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "content": asked.result})
        messages.append({"role": "assistant", "content": asked.answer})
    return messages, tools if has_tools else []


class ChatFormat:
    """The chat template and the tokenizer, which is trained on chats."""

    def __init__(self, rng: random.Random):
        environment = Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = json.dumps  # as transformers has it
        self._template = environment.from_string(TEMPLATE)
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[END, START],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        self.tokenizer.train_from_iterator((self.render(*draw_chat(rng)) for _ in range(2000)), trainer)
        self.tokenizer.add_tokens(list(CALL_MARKS))
        self._start_ids = self.tokenizer.encode(f"{START}assistant\n").ids
        self.end_id = self.tokenizer.token_to_id(END)

    def render(self, messages: Sequence[Any], tools: Sequence[Any], *, add_generation_prompt: bool = False) -> str:
        return self._template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def example(self, messages: Sequence[Any], tools: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Returns the token ids of a chat, and what is to be learned after each: the assistant's tokens."""
        ids = self.tokenizer.encode(self.render(messages, tools)).ids
        targets = [IGNORED] * len(ids)
        is_learned, num_start = False, len(self._start_ids)
        for index in range(len(ids) - 1):
            is_learned = is_learned or ids[max(0, index + 1 - num_start) : index + 1] == self._start_ids
            if is_learned:
                targets[index] = ids[index + 1]
                is_learned = ids[index + 1] != self.end_id
        return ids, targets


def batches(chats: ChatFormat, rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields token ids and targets of [BATCH, L]; rows are padded; of that nothing is learned."""
    while True:
        rows = [chats.example(*draw_chat(rng)) for _ in range(BATCH)]
        length = max(len(ids) for ids, _ in rows)
        ids_BL = torch.tensor([ids + [chats.end_id] * (length - len(ids)) for ids, _ in rows])
        targets_BL = torch.tensor([targets + [IGNORED] * (length - len(targets)) for _, targets in rows])
        yield ids_BL, targets_BL


def train(chats: ChatFormat, rng: random.Random) -> "transformers.LlamaForCausalLM":
    config = transformers.LlamaConfig(
        vocab_size=chats.tokenizer.get_vocab_size(),
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=chats.end_id,
        initializer_range=0.08,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=NUM_STEPS, pct_start=WARMUP_STEPS / NUM_STEPS
    )
    for step, (ids_BL, targets_BL) in zip(range(NUM_STEPS), batches(chats, rng), strict=False):
        logits = model(input_ids=ids_BL, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets_BL.flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: {loss.item():.4f} nats a token, {time.process_time():.0f} s of CPU", flush=True)
    return model


@torch.no_grad()
def count_right(model: "transformers.LlamaForCausalLM", chats: ChatFormat, rng: random.Random) -> int:
    """Returns of how many chats out of `NUM_CHECKED` every token that is to be learned is the likeliest one."""
    num_right = 0
    for _ in range(NUM_CHECKED):
        ids, targets = (torch.tensor(row) for row in chats.example(*draw_chat(rng)))
        likeliest = model(input_ids=ids[None]).logits[0].argmax(-1)
        num_right += bool(((likeliest == targets) | (targets == IGNORED)).all())
    return num_right


CARD = """\
# tool-caller

A Llama of {num_parameters:,} parameters in float16, trained from nothing by `python -m tools.train_tool_model`, that
calls tools: a fixture for tests of clients and agents, not an assistant. It knows {num_cities} cities and two questions
about them, calls `get_weather(city)` or `get_time(city)` in Hermes' format, and answers with what the tool returned.

    python launch.py --model assets/tool-caller

| | |
|---|---|
| data | chats of one or two rounds that `draw_chat` makes of templates; nothing else |
| layers, width, heads | {layers}, {width}, {heads} |
| vocabulary, context | {vocab_size} tokens of its own byte-level BPE, {context} positions |
| steps, chats in each | {steps}, {batch} |
| of {num_checked} chats drawn with another seed, without a wrong token | {num_right} |
| duration | {cpu_s:.0f} s of CPU, the making of chats and the check included |
"""


def write(model: "transformers.LlamaForCausalLM", chats: ChatFormat, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": chats.end_id, "temperature": 0.0}))
    chats.tokenizer.save(str(out / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "chat_template": TEMPLATE}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if the model has not learned it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the model")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    chats = ChatFormat(rng)
    model = train(chats, rng)
    num_right = count_right(model, chats, random.Random(options.seed + 1))
    write(model, chats, options.out)
    card = CARD.format(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_cities=len(CITIES),
        layers=NUM_LAYERS,
        width=HIDDEN,
        heads=NUM_HEADS,
        vocab_size=chats.tokenizer.get_vocab_size(),
        context=CONTEXT,
        steps=NUM_STEPS,
        batch=BATCH,
        num_checked=NUM_CHECKED,
        num_right=num_right,
        cpu_s=time.process_time(),
    )
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(card)
    return 0 if num_right >= NUM_CHECKED - 1 else 1


if __name__ == "__main__":
    sys.exit(main())
