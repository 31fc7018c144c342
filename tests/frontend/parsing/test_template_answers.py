"""Calls and reasoning as real chat templates write them: the format is found by the template and reads its answers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, find_format
from frontend.parsing.model_format import AUTO, choose_format
from tests.frontend.parsing.golden.make_answers import ANSWERS, MESSAGES, PARAMETERS, make_answers
from tests.frontend.parsing.reading import read

LLAMA_CPP = "SLUICE_LLAMA_CPP"
"""Names the directory of llama.cpp's sources in the source package of llama-cpp-python 0.3.36 (vendor/llama.cpp)."""

ENTRIES: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
NOT_READ = {
    *("Kimi-K3", "MiniMax-M3", "GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B", "tencent-Hy3", "muse-glimmer"),
    *("upstage-Solar-Open-100B", "meetkai-functionary-medium-v3.2", "CohereForAI-c4ai-command-r-plus-tool_use"),
}
"""Templates with calls in formats that cannot be read: requests with tools are refused."""
WITHOUT_TOOLS = {
    *("HuggingFaceTB-SmolLM3-3B", "google-gemma-2-2b-it", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"),
    *("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"),
    "deepseek-ai-DeepSeek-V3.1",
}
"""Templates that do not show the model any tools."""
WITH_OTHER_MARKS = {"Apriel-1.6-15b-Thinker-fixed", "deepseek-ai-DeepSeek-V3.2"}
"""Templates that write an earlier turn without the beginning of its thought."""
ELSEWHERE = {
    *(("NVIDIA-Nemotron-Nano-v2", "calls"), ("NVIDIA-Nemotron-Nano-v2", "answer")),
    *((f"meta-llama-Llama-{name}-Instruct", "calls") for name in ("3.1-8B", "3.2-3B", "3.3-70B")),
    ("openai-gpt-oss-120b", "calls"),
}
"""A template that writes the content of the last turn into a thought, and those that write a turn for each call."""
READ = [(name, answer) for name, entry in ENTRIES.items() for answer in entry.get("answers", ())]
READ = [each for each in READ if each not in ELSEWHERE]


def test_every_template_is_accounted_for():
    assert {name for name, entry in ENTRIES.items() if entry["tools"] is None} == NOT_READ | WITHOUT_TOOLS
    assert len(ENTRIES) - len(NOT_READ | WITHOUT_TOOLS) == 54


@pytest.mark.parametrize("name", ENTRIES)
def test_the_marks_of_the_template_report_its_formats(name: str):
    entry = ENTRIES[name]
    marks = "\n".join(entry["marks"])
    found = find_format(TOOL_FORMATS, marks), find_format(REASONING_FORMATS, marks)
    assert found == (entry["tools"], entry["reasoning"])


@pytest.mark.parametrize(("name", "answer"), READ)
def test_an_answer_is_read_as_the_message_that_the_template_wrote(name: str, answer: str):
    entry, message = ENTRIES[name], MESSAGES[answer]
    if isinstance(entry["answers"][answer], str):
        pytest.skip(f"the template refuses it: {entry['answers'][answer]}")
    prompt_end, text = entry["answers"][answer]
    format = choose_format(AUTO, AUTO, "\n".join(entry["marks"])).with_tools
    assert format is not None
    whole = read(format, text, PARAMETERS, prompt_end)
    calls = [call["function"] for call in message.get("tool_calls", ()) if call["function"]["name"] in text]
    assert whole.values == tuple((call["name"], call["arguments"]) for call in calls)
    if format.has_reasoning and name not in WITH_OTHER_MARKS:
        assert whole.reasoning == ("THOUGHT" if "THOUGHT" in text else "")
        assert whole.content.strip() == ("CONTENT" if "CONTENT" in text else "")
    cuts = [range(len(text)), *([cut] for cut in range(1, len(text), len(text) // 9 + 1))]
    for is_streamed in (True, False):
        for cut in cuts:
            assert read(format, text, PARAMETERS, prompt_end, cut, is_streamed=is_streamed) == whole


def test_the_templates_themselves():
    if LLAMA_CPP not in os.environ:
        pytest.skip(f"{LLAMA_CPP} does not name a directory with llama.cpp's chat templates")
    assert make_answers(Path(os.environ[LLAMA_CPP])) == ENTRIES
