"""N-gram lookup: where the last tokens of a request stood before, in its prompt or its output."""

from array import array

from messages.columns import INT32

MAX_MATCH = 4
"""Tokens that are compared; a match of fewer is the worse the shorter it is."""

MAX_CANDIDATES = 8
"""Earlier places of the last two tokens that are looked at, the latest first."""

MAX_ADDED = 2048
"""Tokens that one lookup adds to the index: a long prompt is added in the course of some steps, about 1 ms each."""

NUM_HEADS = 1 << 12


class NgramIndex:
    """Where each pair of tokens of a request stands, as hash chains (as DEFLATE finds matches, RFC 1951, section 4).

    Its memory is 16 KiB and 4 bytes a token. Place 0 means none: no pair ends there.
    """

    __slots__ = ("_heads", "_previous")

    def __init__(self) -> None:
        self._heads = array(INT32, bytes(4 * NUM_HEADS))
        """By hash: the latest place where such a pair ends."""
        self._previous = array(INT32, [0])
        """By place: the place before it with the same hash."""

    def find(self, token_ids: "array[int]") -> tuple[int, int]:
        """Returns where the last tokens, at most `MAX_MATCH`, stood before: the place behind them, and how many match.

        The longest match counts, of equal ones the latest; 0 of a match is none. All but the last token are indexed.
        """
        self._add(token_ids)
        end = len(token_ids)
        if end < 3:
            return 0, 0
        before, last = token_ids[-2], token_ids[-1]
        place, found, longest = self._heads[_hash(before, last)], 0, 1
        for _ in range(MAX_CANDIDATES):
            if not place:
                break
            if token_ids[place] == last and token_ids[place - 1] == before:
                length = 2
                while length < MAX_MATCH and length <= place and token_ids[place - length] == token_ids[-1 - length]:
                    length += 1
                if length > longest:
                    found, longest = place + 1, length
                if length == MAX_MATCH:
                    break
            place = self._previous[place]
        return found, longest if found else 0

    def _add(self, token_ids: "array[int]") -> None:
        heads, previous = self._heads, self._previous
        start = len(previous)
        for place in range(start, min(start + MAX_ADDED, len(token_ids) - 1)):
            key = _hash(token_ids[place - 1], token_ids[place])
            previous.append(heads[key])
            heads[key] = place


def _hash(before: int, last: int) -> int:
    return (before * 40503 ^ last) & (NUM_HEADS - 1)
