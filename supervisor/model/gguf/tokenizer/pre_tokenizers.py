"""How byte-pair tokenizers split text into words, by the names that llama.cpp gives to pre-tokenizers.

A GGUF file holds only the name (`tokenizer.ggml.pre`). Where llama.cpp approximates the expression of a model's own
tokenizer.json, the table has the model's. The syntax is Oniguruma's, which the `tokenizers` library uses.
"""

from typing import NamedTuple

from messages.errors import BootError, quoted

PRE_KEY = "tokenizer.ggml.pre"


class PreTokenizer(NamedTuple):
    """The patterns are applied in turn, each to the pieces so far: matches and the text between them become pieces.

    `ignore_merges`: a word that is a token is not built from merges. `adds_bos`: the default of `add_bos_token`.
    `is_byte_level`: tokens are spelled in GPT-2's alphabet of bytes; otherwise in text, with ▁ for a space.
    `composes`: characters are composed first (Unicode's normal form C) as the model wants it; llama.cpp omits this.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    is_byte_level: bool = True
    composes: bool = False


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DIGITS = r"\p{N}"
THREE_DIGITS = r"\p{N}{1,3}"
GROUPS_OF_THREE = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
MARK_AND_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
DEEPSEEK3 = (THREE_DIGITS, CJK, rf"{MARK_AND_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{BLANKS}")
LINES = (r"[^\n]+|\n+",)


def _words(digits: str, word: str = WORD, symbols: str = SYMBOLS, blanks: str = BLANKS) -> str:
    return f"{CONTRACTIONS}|{word}|{digits}|{symbols}|{blanks}"


def _cased_words(
    digits: str, contractions: str = f"{CONTRACTIONS}?", but: str = "", newlines: str = r"[\r\n/]*"
) -> str:
    """Returns the pattern of tokenizers that split a word before a capital letter. `but` takes letters out of both."""
    upper, lower = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]", rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{upper}*{lower}+{contractions}|{before}{upper}+{lower}*{contractions}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{newlines}|{BLANKS}"


LLAMA3 = _words(THREE_DIGITS)
QWEN2 = _words(DIGITS)
QWEN35 = _words(DIGITS, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
GPT4O = _cased_words(THREE_DIGITS)
KIMI = r"\p{Han}+|" + _cased_words(THREE_DIGITS, but=r"&&[^\p{Han}]", newlines=r"[\r\n]*")

CASED_LETTERS = (  # of the version of Unicode that DeepSeek's tokenizer was made with
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώ"
    "ᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏"
    "𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]"
)

TABLE = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
    "roberta-bpe exaone4 jais trillion granite-docling": PreTokenizer((GPT2,)),
    "mpt olmo": PreTokenizer((GPT2,), composes=True),
    "command-r": PreTokenizer((DIGITS, GPT2), composes=True),
    "starcoder refact smollm codeshell exaone minerva-7b mellum2": PreTokenizer((DIGITS, GPT2)),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": PreTokenizer(
        (LLAMA3,), ignore_merges=True, adds_bos=True
    ),
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((LLAMA3,)),
    "glm4 glm5": PreTokenizer((LLAMA3,), ignore_merges=True),
    "qwen2": PreTokenizer((QWEN2,), composes=True),
    "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": PreTokenizer((QWEN2,)),
    "qwen35": PreTokenizer((QWEN35,), composes=True),
    "laguna": PreTokenizer((*LINES, QWEN2)),
    "ufakzeka": PreTokenizer((QWEN2.removeprefix(f"{CONTRACTIONS}|"),)),
    "minicpm5": PreTokenizer((THREE_DIGITS, _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            _words(
                THREE_DIGITS,
                blanks=r"\s*[\r\n]+|"
                + "|".join(
                    rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
                )
                + r"|\s{1}",
            ),
        )
    ),
    "seed-coder": PreTokenizer((_words(DIGITS, symbols=r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    "exaone-moe": PreTokenizer(
        (
            _words(
                DIGITS,
                r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                r"\s*[\r\n]|\s+(?!\S)|\s+",
            ),
        )
    ),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": PreTokenizer((GPT4O,)),
    "granite-embed-multi-97m": PreTokenizer((GPT4O,), ignore_merges=True),
    "tiny_aya cohere2moe": PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)),
    "tekken": PreTokenizer((_cased_words(DIGITS, contractions=""),), ignore_merges=True, adds_bos=True),
    "kimi-k2": PreTokenizer((KIMI,)),
    "youtu": PreTokenizer(
        (
            "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
            f"\ufe30-\ufe4f]+|[\u3105-\u312f]+|{CJK}",
            _cased_words(DIGITS),
        ),
        ignore_merges=True,
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?{CASED_LETTERS}+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", DIGITS)
    ),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": PreTokenizer(DEEPSEEK3),
    "spark2_5": PreTokenizer((THREE_DIGITS, CJK, rf"{MARK_AND_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+", DIGITS)),
    "afmoe": PreTokenizer(
        (
            GROUPS_OF_THREE,
            "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
            "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
            "\u1100-\u11ff]+",
            DEEPSEEK3[-1],
        )
    ),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "poro-chat bloom gpt3-finnish": PreTokenizer((BLOOM,)),
    "viking": PreTokenizer((BLOOM, DIGITS)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\\t\\n]|    |  )",
            DIGITS,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ),
        adds_bos=True,
    ),
    "gemma4 granite-embed-multi-311m": PreTokenizer(LINES, adds_bos=True, is_byte_level=False),
    "sarvam-moe": PreTokenizer(LINES, is_byte_level=False),
}
"""By the names of a pre-tokenizer, with spaces between them."""

PRE_TOKENIZERS = {name: pre_tokenizer for names, pre_tokenizer in TABLE.items() for name in names.split()}


def find_pre_tokenizer(name: object) -> PreTokenizer:
    """Returns the pre-tokenizer of `tokenizer.ggml.pre`. Raises `BootError` if the file has none, or an unknown one."""
    if isinstance(name, str) and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    fault = f"is {quoted(name)}, which is unknown here"
    if name is None:
        fault = "is missing: the file is older than this field"
    raise BootError(
        f"{PRE_KEY} {fault}, so how the tokenizer splits text into words is not known. Convert the model again with a "
        "newer llama.cpp, or give a directory with the model's tokenizer.json with --tokenizer"
    )
