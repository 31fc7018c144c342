"""Steps of a head of multi-token prediction, whose entry for a token belongs to the place of the token before it.

The entry reads the hidden state of that token, and its position is that token's; so a request's first token has none.
The last entry of a full page depends on the token behind it: requests that part right there overwrite each other's,
which only makes a draft token of one of them less likely right.
"""

from array import array

import msgspec

from messages.columns import INT32, INT64, unpack_int32, unpack_int64
from messages.ring.steps import Batch


def at_places_before(batch: Batch, page_size: int) -> Batch:
    """Returns the step with each token at the place of the token before it; rows must not have their first tokens.

    The head's hidden state after the last token of each row is kept at that token's own place.
    """
    positions, slots = unpack_int32(batch.positions), unpack_int64(batch.slots)
    tables, end = unpack_int32(batch.page_tables), 0
    before, hidden_slots = array(INT64), array(INT64, [-1]) * len(slots)
    for row, query_len in enumerate(unpack_int32(batch.query_lens)):
        page, offset = divmod(positions[end] - 1, page_size)
        before.append(tables[row * batch.num_pages_per_row + page] * page_size + offset)
        before += slots[end : end + query_len - 1]
        end += query_len
        hidden_slots[end - 1] = slots[end - 1]
    return msgspec.structs.replace(
        batch,
        context_lens=array(INT32, [count - 1 for count in unpack_int32(batch.context_lens)]).tobytes(),
        positions=array(INT32, [position - 1 for position in positions]).tobytes(),
        slots=before.tobytes(),
        hidden_slots=hidden_slots.tobytes(),
    )
