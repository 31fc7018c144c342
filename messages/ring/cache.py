"""What an operator asks about the prefix cache: nothing is changed by it, not even what was used last."""

from typing import Literal

import msgspec

from messages.columns import Int32s

MatchEnd = Literal["page_not_full", "different_token", "not_cached", "evicted", "salt", "disabled"]
"""Why no more of a prompt is in the cache: what is left fills no page beside the token that must be computed; another
token stands there in what is cached; nothing cached goes on from there; it was cached and has been evicted; it is
cached for another `cache_salt`; the cache is off."""


class ExplainCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: how much of int32 `input_ids` is cached. Answered with `CacheExplained`."""

    uid: int
    input_ids: Int32s
    cache_salt: str = ""
    engine: int = 1


class CacheSource(msgspec.Struct, frozen=True, array_like=True):
    """Tokens `start` to `end` (exclusive) are cached since request `uid` computed them."""

    uid: int
    start: int
    end: int


class CacheExplained(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the answer to `ExplainCache`.

    The match ends before token `position`: of it for "different_token", else `num_hit_tokens`. `cached_token` is the
    one that stands there in what request `other_uid` computed; that is also whose pages were evicted, `evicted_s` ago,
    or have another salt. 0 and -1: there is none. Of the tokens behind the match, tiers below the cache have as many as
    `tier_tokens` says by their names.
    """

    uid: int
    num_hit_tokens: int
    sources: tuple[CacheSource, ...]
    ended_by: MatchEnd
    position: int
    cached_token: int = -1
    other_uid: int = 0
    evicted_s: float = 0.0
    tier_tokens: dict[str, int] = {}


class ListCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: the `limit` largest nodes of the radix tree. Answered with `CacheListed`."""

    uid: int
    limit: int
    engine: int = 1


class CacheNode(msgspec.Struct, frozen=True, array_like=True):
    """A run of whole pages below the first `start` tokens of a prompt. `parent` is the number of the node above, 0 for
    none; request `uid` computed it; `num_using` running requests do, or a node below."""

    number: int
    parent: int
    uid: int
    start: int
    num_tokens: int
    num_children: int
    num_using: int
    is_salted: bool


class CacheListed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the answer to `ListCache`, the largest nodes first.

    Tiers below the cache have as many tokens as `tier_tokens` says by their names; some of them are cached, too.
    """

    uid: int
    nodes: tuple[CacheNode, ...]
    num_nodes: int
    num_cached_tokens: int
    num_evictable_tokens: int
    tier_tokens: dict[str, int] = {}


CacheQuestion = ExplainCache | ListCache
CacheAnswer = CacheExplained | CacheListed
