"""A made-up kind of span: each row is the mean of the embeddings of some tokens."""

from pathlib import Path

import torch
from msgspec.structs import replace

from messages.ring.spans import PromptSpan
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.test_spans import NUM_TOKENS, Prompt, generate, tokens_of


class MixedPrompt(Prompt):
    @property
    def spans(self) -> tuple[PromptSpan, ...]:
        return tuple(replace(span, kind="mixture") for span in super().spans)


def test_the_mean_of_one_token_is_that_token_and_the_mean_of_two_is_neither(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path, "llama-gqa-tied")
    engine, mixed = OfflineEngine(make_config(tmp_path)), MixedPrompt(40, (10, 20, 1))
    engine._runner._decoder.place_mixture(mixed.spans[0].digest, [250], 20)
    plain = Prompt(40)
    plain.ids[10:30] = [250] * 20
    assert tokens_of(generate(engine, [mixed, plain])) == [plain.expect(model)] * 2
    both = MixedPrompt(40, (10, 20, 2))
    engine._runner._decoder.place_mixture(both.spans[0].digest, [250, 9], 20)
    with torch.inference_mode():
        ids = torch.tensor(both.ids)
        inputs_TE = model.get_input_embeddings()(ids)
        inputs_TE[10:30] = model.get_input_embeddings()(torch.tensor([250, 9])).mean(0)
        first = int(model(inputs_embeds=inputs_TE[None]).logits[0, -1].argmax())
    ((*output,),) = tokens_of(generate(engine, [both]))
    assert output[0] == first
    assert len(output) == NUM_TOKENS
    assert output != plain.expect(model)
