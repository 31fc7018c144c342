"""DRY's sequence breakers: the tokens over which no repetition reaches."""

import msgspec

from messages.columns import pack_int32
from messages.ring.requests import Dry
from tokenizer_proc.encoding import Encoding


def with_breaker_ids(dry: Dry | None, encoding: Encoding, vocab_size: int) -> Dry | None:
    """Returns `dry` with the last token of each breaker, as it is encoded after a letter.

    That is what text-generation-webui does. A breaker without tokens, or with one that the model does not have,
    breaks nothing.
    """
    if dry is None or not dry.sequence_breakers:
        return dry
    encoded = (encoding.encode("a" + breaker, add_special_tokens=False) for breaker in dry.sequence_breakers)
    ids = {ids[-1] for ids in encoded if ids and ids[-1] < vocab_size}
    return msgspec.structs.replace(dry, breaker_ids=pack_int32(sorted(ids)))
