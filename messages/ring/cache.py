"""Questions of operators about the prefix cache. They change nothing, not even the order of last use."""

from typing import Literal

import msgspec

from messages.columns import Int32s

MatchEnd = Literal[
    "page_not_full", "different_token", "not_cached", "evicted", "salt", "disabled", "window_evicted", "no_checkpoint"
]
"""Why the cache hit of a prompt ends: the rest, without the token that must be computed, fills no page; the cached text
has a different token there; nothing cached continues from there; it was cached and has been evicted; it is cached for
another `cache_salt`; the cache is disabled; what windowed layers need to continue further on has been evicted; no
checkpoint of the recurrent layers' state is cached further on."""


class ExplainCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: return the cache hit of int32 `input_ids`. Answered with `CacheExplained`."""

    uid: int
    input_ids: Int32s
    cache_salt: str = ""
    engine: int = 1


class CacheSource(msgspec.Struct, frozen=True, array_like=True):
    """Tokens `start` to `end` (exclusive) are cached; request `uid` computed them."""

    uid: int
    start: int
    end: int


class CacheExplained(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the answer to `ExplainCache`.

    The match ends before token `position`, which is `num_hit_tokens` except for "different_token" and "no_checkpoint".
    For the first, the cache has `cached_token` there, computed by request `other_uid` (-1 and 0: none). For "evicted"
    and "salt", `other_uid` is the request whose pages were evicted, `evicted_s` seconds ago, or have another salt.
    `tier_tokens`: the number of tokens after the match that each lower tier has, by its name.
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
    """frontend → tokenizer → scheduler: list the `limit` largest radix tree nodes. Answered with `CacheListed`."""

    uid: int
    limit: int
    engine: int = 1


class CacheNode(msgspec.Struct, frozen=True, array_like=True):
    """A run of whole pages after the first `start` tokens of a prompt, computed by request `uid`.

    `parent` is the number of the parent node, 0 if there is none. `num_using` running requests use it or a node below.
    """

    number: int
    parent: int
    uid: int
    start: int
    num_tokens: int
    num_children: int
    num_using: int
    is_salted: bool


class CacheListed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the answer to `ListCache`, largest nodes first.

    `tier_tokens`: the number of tokens in each lower tier, by its name; some of them are also in the cache.
    """

    uid: int
    nodes: tuple[CacheNode, ...]
    num_nodes: int
    num_cached_tokens: int
    num_evictable_tokens: int
    tier_tokens: dict[str, int] = {}


CacheQuestion = ExplainCache | ListCache
CacheAnswer = CacheExplained | CacheListed
