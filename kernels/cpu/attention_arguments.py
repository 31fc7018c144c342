"""The arguments of the attention kernels: the mirror of `attention_arguments` in source/attention_arguments.h."""

import ctypes

ALL_KEYS = (1 << 31) - 1
"""The window of attention to all keys."""

POINTER, INTEGER, NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class AttentionArguments(ctypes.Structure):
    """Each field is one word of 8 bytes, so that a captured call holds the structure in place of its arguments.

    A field that is not given is 0 or null.
    """

    _fields_ = (
        ("query", POINTER),
        ("query_stride", INTEGER),
        ("keys", POINTER),
        ("values", POINTER),
        ("key_scales", POINTER),
        ("value_scales", POINTER),
        ("page_tables", POINTER),
        ("table_stride", INTEGER),
        ("num_keys", POINTER),
        ("query_lens", POINTER),
        ("context_lens", POINTER),
        ("out", POINTER),
        ("num_rows", INTEGER),
        ("num_heads", INTEGER),
        ("queries_a_head", INTEGER),
        ("head_dim", INTEGER),
        ("page_size", INTEGER),
        ("scale", NUMBER),
        ("window", INTEGER),
        ("softcap", NUMBER),
        ("sinks", POINTER),
        ("biases", POINTER),
        ("bias_reach", INTEGER),
        ("is_float16", INTEGER),
    )

    @property
    def words(self) -> list[int | float | None]:
        """The values of the fields, in order."""
        return [getattr(self, field[0]) for field in self._fields_]
