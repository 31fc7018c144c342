"""The arguments of the C kernels: one structure an operation, declared here for Python and for C (headers.py)."""

import ctypes
from typing import Any

ALL_KEYS = (1 << 31) - 1
"""The window of attention to all keys."""

WORD = 8
POINTER, INTEGER, FLOAT, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_double
TYPES: dict[str, Any] = {"int64_t": INTEGER, "float": FLOAT, "double": NUMBER}

DECLARATIONS = {
    "embed": """
        const int32_t *token_ids, *positions;
        const element *tokens;   /* [vocabulary, size], plain or as pack_linear packs it */
        const element *places;   /* [positions, size]; null for none */
        element *out;            /* [num_tokens, size] */
        int64_t num_tokens, size, is_packed;
    """,
    "layer_norm rms_norm": """
        element *x;              /* [num_tokens, size], rows `stride` apart */
        const element *update;   /* [num_tokens, size], added to x; null for none */
        const element *weight, *bias;
        element *out;            /* like x */
        int64_t num_tokens, size, stride;
        float eps;
    """,
    "store_hidden join_hidden": """
        const element *x;        /* [num_tokens, size] */
        element *kept;           /* [slots, size] */
        const int64_t *slots;
        const element *embedding_weight, *hidden_weight;
        element *out;            /* [num_tokens, 2, size] */
        int64_t num_tokens, size;
        float eps;
    """,
    "gelu relu_squared silu_mul gelu_mul swiglu_oai": """
        const element *x;        /* [num_tokens, size]; gated: [num_tokens, 2, size], the gate first */
        const element *up;       /* rows `up_stride` apart, or null if x has both halves */
        element *out;            /* [num_tokens, size] */
        int64_t num_tokens, size, up_stride;
        int64_t is_exact;        /* GELU, not its tanh approximation */
        float alpha, limit;      /* of swiglu_oai */
    """,
    "rescale": """
        element *x;              /* [num_tokens, size] */
        const element *added;    /* like x; null for none */
        int64_t num_tokens, size;
        float factor, softcap;   /* softcap 0 for none */
    """,
    "rotate_store": """
        element *heads;          /* [num_tokens, num_heads + 2 * num_kv_heads, head_dim]: of queries, keys and values */
        const float *cosines, *sines; /* [positions, half]; null for no rotation */
        const int32_t *positions;
        const int64_t *slots;
        void *keys, *values;     /* [slots, num_kv_heads, head_dim]: elements, codes if there are scales, or float16 */
        uint16_t *key_scales, *value_scales; /* [slots, num_kv_heads] */
        const element *query_weight, *key_weight, *value_weight; /* [head_dim]; null for no norm */
        int64_t num_tokens, num_heads, num_kv_heads, head_dim, half;
        int64_t query_row;       /* by which the angles of queries are later than those of keys */
        int64_t is_float16;      /* only if elements are float32 */
        float eps;
    """,
    "paged_decode paged_prefill encoder_attention": """
        const void *query;       /* [tokens, num_heads * queries_a_head, head_dim], tokens `query_stride` apart */
        int64_t query_stride;
        const void *keys, *values; /* [slots, num_heads, head_dim]: elements, codes of int8, or float16 */
        const uint16_t *key_scales, *value_scales; /* bfloat16 [slots, num_heads]; null without codes */
        const int32_t *page_tables; /* [rows, pages], rows `table_stride` apart */
        int64_t table_stride;    /* for encoder_attention: elements between tokens of keys, and of values */
        const int32_t *num_keys; /* [rows], for decode */
        const int32_t *query_lens, *context_lens; /* [rows], for prefill */
        void *out;               /* like query, contiguous */
        int64_t num_rows, num_heads, queries_a_head, head_dim, page_size; /* `num_heads`: key/value heads */
        double scale;
        int64_t window;          /* last keys that a query attends to: at least 1; 2^31 - 1 for all */
        double softcap;          /* scores become softcap * tanh(score / softcap); 0 for none */
        const float *sinks;      /* [num_heads * queries_a_head]; null for none */
        const float *biases;     /* [num_heads, 2 * bias_reach + 1], by distance; of encoder_attention, or null */
        int64_t bias_reach;
        int64_t is_float16;      /* keys and values are, and the elements float32 */
        const uint16_t *latent_scales; /* bfloat16 [slots]: of latents of codes, which are keys and values; else null */
        int64_t rotated_dim;     /* of these, the last elements of a latent, which are bfloat16 behind the codes */
        const int32_t *last_keys; /* [tokens], ascending in a row, for prefill: the last key of each; null: its own */
    """,
    "latent_decode latent_prefill": """
        const element *query, *rotated; /* [num_heads, tokens, rank] and [num_heads, tokens, rotated_dim] */
        int64_t query_stride, rotated_stride, out_stride; /* between heads */
        const void *latents;     /* [slots, rank + rotated_dim]: elements, or float16; with scales, codes of int8 and */
        const uint16_t *scales;  /* then `rotated_dim` bfloat16. bfloat16 [slots]; null without codes */
        const int32_t *page_tables; /* [rows, pages], rows `table_stride` apart */
        int64_t table_stride;
        const int32_t *num_keys; /* [rows], for decode */
        const int32_t *query_lens, *context_lens; /* [rows], for prefill */
        element *out;            /* like query */
        int64_t num_rows, num_heads, rank, rotated_dim, page_size;
        double scale;
        int64_t is_float16;      /* latents are, and the elements float32 */
    """,
    "store_latents": """
        element *query;          /* [num_tokens, num_heads, plain_dim + rotated_dim] */
        element *latent;         /* [num_tokens, rank + rotated_dim] */
        const element *weight;   /* [rank] */
        const float *cosines, *sines; /* [positions, rotated_dim / 2] */
        const float *growth;     /* [positions], of queries; null for none */
        const int32_t *positions;
        const int64_t *slots;
        void *latents;           /* as of latent_decode, as are scales */
        uint16_t *scales;
        element *plain, *rotated; /* [num_heads, num_tokens, plain_dim] and [num_heads, num_tokens, rotated_dim] */
        int32_t *ends;           /* [num_heads]: the end of each head's rows */
        int64_t num_tokens, num_heads, plain_dim, rotated_dim, rank, query_row, is_float16;
        float eps;
    """,
    "join_heads": """
        const element *x;        /* [num_heads, num_tokens, size] */
        element *out;            /* [num_tokens, num_heads, size] */
        int64_t num_tokens, num_heads, size;
    """,
    "packed_linear rounded_linear fp8_linear": """
        const element *x;        /* [num_rows, inputs]; for rounded_linear x, bias and out are float32 */
        const void *weight;
        const element *bias;     /* [outputs]; null for none */
        element *out;            /* [num_rows, outputs] */
        int64_t num_rows, inputs, outputs;
        int64_t size;            /* for fp8_linear: inputs of a scale */
        int64_t gelu;
    """,
    "block_linear": """
        const element *x;        /* [num_rows, inputs] */
        const void *weight, *segments; /* the blocks of all segments, and block_segment */
        const element *bias;     /* [outputs]; null for none */
        const float *means;      /* [num_rows], of whole tokens if x is a part of them; null for none */
        element *out;            /* [num_rows, outputs] */
        int64_t num_segments, num_rows, inputs, gelu;
    """,
    "expert_packed_linear expert_block_linear": """
        const element *x;        /* [rows, inputs] */
        const void *weight, *segment; /* of all experts' rows, one expert's after another's */
        const element *biases;   /* [num_experts, outputs]; null for none */
        const int32_t *row_ends; /* [num_experts] */
        element *out;            /* [rows, outputs] */
        const float *means;      /* [rows], as of block_linear */
        int64_t num_experts, inputs, outputs;
    """,
    "lora_linear": """
        const element *x;        /* [num_tokens, num_inputs] */
        const element *a;        /* [num_slots, num_segments, max_rank, num_inputs] */
        const element *b;        /* [num_slots, max_rank, num_outputs] */
        const int32_t *ranks;    /* [num_slots, num_segments], as are scales */
        const float *scales;
        const int32_t *ends;     /* [num_segments]: the first output after each */
        const int32_t *slots;    /* [num_tokens], -1 without an adapter */
        element *out;            /* [num_tokens, num_outputs] */
        int64_t num_tokens, num_inputs, num_outputs, num_segments, max_rank, num_slots;
    """,
    "look_up_blocks": """
        const void *weight, *segments;
        const int32_t *rows;     /* [num_rows] */
        element *out;            /* [num_rows, inputs] */
        int64_t num_segments, num_rows, inputs;
    """,
    "route_tokens": """
        const element *logits;   /* [num_tokens, num_experts] */
        const float *bias, *scales; /* [num_experts]; null for none */
        float *shares;           /* [num_tokens, num_chosen], as are rows */
        int32_t *rows;           /* places among the rows of all experts, sorted by expert, then by token */
        int32_t *tokens;         /* [num_tokens * num_chosen]: the token in each place */
        int32_t *ends;           /* [num_experts]: the end of each expert's places */
        int64_t num_tokens, num_experts, num_chosen, num_groups, num_chosen_groups, num_best_of_group;
        int64_t is_sigmoid, is_renormalized;
        float scale;
    """,
    "gather_rows combine_experts": """
        const element *x;        /* [rows, size] */
        const int32_t *rows;     /* [num_rows], or of tokens to combine [num_rows, num_chosen], as are shares */
        const float *shares;
        const element *shared;   /* [num_rows, size], may be `out`; null for none */
        const element *gates;    /* [num_rows], of `shared`; null for none */
        element *out;            /* [num_rows, size] */
        int64_t num_rows, num_chosen, size;
    """,
    "short_conv": """
        const element *input;    /* [num_tokens, num_channels or, gated, 3 * num_channels], rows `stride` apart */
        const element *weight;   /* [num_channels, num_taps]: at most MOST_TAPS */
        const element *bias;     /* [num_channels]; null for none */
        element *tail;           /* [slots, num_taps - 1, num_channels] */
        STATE_ROWS
        element *out;            /* [num_tokens, num_channels] */
        int64_t num_channels, num_taps, stride, is_gated;
    """,
    "mamba_scan": """
        const element *xbc;      /* [num_tokens, num_heads * value_size + 2 * num_groups * state_size], as time */
        const element *time;     /* [num_tokens, num_heads]; rows are `stride` and `time_stride` apart */
        const float *rates, *biases, *skip; /* [num_heads] */
        float *matrices;         /* [slots, num_heads, value_size, state_size]: at most MOST_STATE */
        STATE_ROWS
        element *out;            /* [num_tokens, num_heads * value_size] */
        int64_t stride, time_stride, num_heads, value_size, state_size, num_groups;
        float shortest, longest;
    """,
    "gated_delta": """
        const element *qkv;      /* [num_tokens, 2 * num_key_heads * key_size + num_heads * value_size] */
        const element *gates;    /* [num_tokens, 2 * num_heads]; rows are `stride` and `gates_stride` apart */
        const float *rates, *biases; /* [num_heads] */
        float *matrices;         /* [slots, num_heads, key_size, value_size]: at most MOST_KEY_SIZE, and multiples of */
        STATE_ROWS               /* DELTA_COLUMNS up to MOST_VALUE_SIZE */
        element *out;            /* [num_tokens, num_heads * value_size] */
        int64_t stride, gates_stride, num_heads, num_key_heads, key_size, value_size, has_tiled_heads;
    """,
    "gated_norm sigmoid_gate": """
        element *values;         /* [num_tokens, size], rows `stride` apart */
        const element *gate;     /* [num_tokens, size], rows `gate_stride` apart */
        const element *weight;   /* [weight_size], which is `size` or `group_size`; null for the gate alone */
        int64_t num_tokens, size, stride, gate_stride, group_size, weight_size, norms_first;
        float eps;
    """,
    "greedy draw sample": """
        const element *logits;   /* [num_rows, vocab_size]; for sample -inf for filtered tokens */
        const float *temperatures;
        const int64_t *seeds, *positions;
        int64_t *tokens;         /* [num_rows]; for draw -1 if a logit of the row is not finite */
        int64_t num_rows, vocab_size;
    """,
    "sum_magnitudes": """
        const element *x;        /* [num_rows, inputs] */
        float *sums;             /* [num_rows] */
        int64_t num_rows, inputs;
    """,
    "quantize": """
        const element *weight;   /* [outputs, inputs] */
        const element *largest;  /* [outputs], with 8 bits; null for none */
        uint8_t *packed;         /* [blocks, bytes of a block] */
        int64_t outputs, inputs, bits;
    """,
    "pack_linear": """
        const element *weight;   /* [outputs, inputs], or [inputs, outputs] if it is transposed */
        element *packed;         /* [blocks, inputs / PACK_STEP, 32, PACK_STEP], set from output `first` on */
        int64_t first, outputs, inputs, is_transposed;
    """,
    "pack_blocks": """
        void *weight;
        const void *segments;
        const uint8_t *rows;     /* [num_rows, row_bytes], of a segment from `first_row` on */
        int64_t segment, first_row, num_rows, inputs, row_bytes;
    """,
    "apply_bitmask": """
        float *logits;           /* [rows, vocab_size] */
        const int64_t *rows;     /* [num_rows]: one for each row of the bitmask */
        const uint32_t *bitmask; /* [num_rows, words] */
        int64_t num_rows, vocab_size;
    """,
}
"""The fields in C by the operations that take them: a structure has the name of its first operation.

Operations for one number format alone, or for processors with certain instructions, are missing elsewhere.
"""

STATE_ROWS = """const int32_t *decode_sources, *prefill_sources, *prefill_lens, *slots;
        int64_t num_decode_rows, num_prefill_rows;"""
"""As `state_rows` in source/state_rows.h."""


class Arguments(ctypes.Structure):
    """A field that is not given is 0 or null. Structures are whole words: a captured call holds one of them."""

    fixed_words: tuple[int, ...]
    """The words that are neither addresses nor constants of a layer: sizes and flags."""


def _structure(name: str, declaration: str) -> type[Arguments]:
    fields: list[tuple[str, Any]] = []
    pieces = declaration.replace("STATE_ROWS", STATE_ROWS).split("/*")
    without_comments = pieces[0] + "".join(piece.partition("*/")[2] for piece in pieces[1:])
    for statement in without_comments.split(";")[:-1]:
        kind, _, names = statement.strip().removeprefix("const ").partition(" ")
        fields += [(one.strip(" *"), POINTER if "*" in one else TYPES[kind]) for one in names.split(",")]
    made = type(name, (Arguments,), {"_fields_": fields})
    assert ctypes.sizeof(made) % WORD == 0
    made.fixed_words = tuple(getattr(made, field).offset // WORD for field, kind in fields if kind in (INTEGER, NUMBER))
    return made


STRUCTURES: dict[str, type[Arguments]] = {
    operation: made
    for operations, declaration in DECLARATIONS.items()
    for made in (_structure(operations.split()[0], declaration),)
    for operation in operations.split()
}
"""By operation."""

MAX_WORDS = max(ctypes.sizeof(made) for made in STRUCTURES.values()) // WORD
