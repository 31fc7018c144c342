"""The kinds of prompt tasks: each has its fields in the messages, and only `tasks/` knows it."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from messages.columns import pack_int32
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from messages.ring.steps import Batch, ForwardOutput
from scheduler_proc.deciding import tasks
from scheduler_proc.deciding.tasks.kinds import KINDS, find_task
from scheduler_proc.deciding.tasks.prompt_logprobs import PROMPT_LOGPROBS

DECIDING = Path(tasks.__file__).parents[1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.field)
def test_a_kind_has_its_fields_in_batches_and_results_and_no_file_outside_names_it(kind):
    assert kind.field in Batch.__struct_fields__
    assert kind.field in ForwardOutput.__struct_fields__
    named = re.compile(rf"\.{kind.field}\b|\b{kind.field}=")
    others = [path for path in DECIDING.rglob("*.py") if path.parent != Path(tasks.__file__).parent]
    assert not [path.name for path in others if named.search(path.read_text())]


def test_a_request_has_the_task_that_its_parameters_ask_for():
    message = UserMsg(1, 0, pack_int32([1, 2, 3]), SamplingParams(1), Stamps(), pack_int32([4]))
    assert find_task(message) is None
    task = find_task(replace(message, sampling_params=SamplingParams(1, num_prompt_logprobs=2)))
    assert task is not None
    assert task.kind is PROMPT_LOGPROBS
    assert task.count(0, 3) == 2
