"""The configuration of a run: one frozen tree, parsed once by the launcher, read by every process.

A field is a flag: `max_num_seqs` is `--max-num-seqs`; its annotation holds the range and the help text (with the
unit), so `--help`, the checks and the processes read the same source (`supervisor/flags.py`).
"""

from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from messages.config.http import HttpConfig
from messages.config.pooling import PoolingFacts
from messages.config.processes import RunConfig

Positive = Meta(ge=1)

PART_WHILE_LIVE = 64
"""While other requests are open, yielding ones get 1/PART_WHILE_LIVE of the rows: each makes the steps longer."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Model"""

    model: Annotated[
        str,
        Meta(
            description="a directory in Hugging Face layout, a file in GGUF, or a name on the hub; empty: the bundled "
            "model"
        ),
    ] = ""
    gguf_file: Annotated[
        str,
        Meta(
            description="which file in GGUF to read, if the directory or the repository of --model has several",
            extra={"metavar": "NAME"},
        ),
    ] = ""
    served_model_name: Annotated[
        tuple[str, ...], Meta(description="names under which clients may ask for the model (default: --model)")
    ] = ()
    tokenizer: Annotated[
        str, Meta(description="a directory, a file in GGUF or a name for the tokenizer (default: --model)")
    ] = ""
    revision: Annotated[str, Meta(description="branch, tag or commit of the model on the hub")] = "main"
    model_impl: Annotated[
        Literal["auto", "native", "transformers"],
        Meta(
            description="whose code computes the model: native: this server's; transformers: that of the package, with "
            "this server's attention, for any decoder whose K and V are all it keeps, slower; auto: native where it "
            "has the architecture"
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(
            description="number format of weights and KV cache; auto: bfloat16 where the device computes it natively, "
            "else float32; float32 for an encoder whose weights are, and for the blocks of a GGUF file on a CPU, whose "
            "KV cache is float16"
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4"],
        Meta(
            description="number format of the linear layers' weights, made while the checkpoint is read, on a CPU; "
            "less memory, faster streams and prompts, slightly other text. int8 multiplies 8-bit activations by 8-bit "
            "weights (w8a8)"
        ),
    ] = "none"
    weight_cache: Annotated[
        bool,
        Meta(description="keep quantized weights in $XDG_CACHE_HOME/sluice or ~/.cache/sluice for the next start"),
    ] = True
    share_weights: Annotated[
        bool,
        Meta(
            description="hold the weights in memory once for all engines, and for the scheduler that follows one that "
            "dies or is replaced (on a CPU; not with --tensor-parallel)"
        ),
    ] = True
    device: Annotated[
        str,
        Meta(
            description="where the model runs: auto, cpu, cuda, or GPUs as cuda:0,cuda:1, one for each rank of each "
            "engine; auto: cuda if there is one",
            extra={"metavar": "NAME"},
        ),
    ] = "auto"
    max_model_len: (
        Annotated[
            int,
            Positive,
            Meta(description="longest prompt plus output, in tokens (default: the model's context)"),
        ]
        | None
    ) = None
    load_format: Annotated[
        Literal["auto", "safetensors", "pt", "gguf", "dummy"],
        Meta(description="which weight files to read; dummy: random weights of the real shape"),
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "none"],
        Meta(description="auto: sampling defaults from the model's generation_config.json; none: API defaults"),
    ] = "auto"
    chat_template: Annotated[
        str, Meta(description="file with the chat template, in Jinja (default: the model's own, or else a plain one)")
    ] = ""
    # fmt: off
    tool_call_parser: Annotated[
        Literal[
            "auto", "none", "hermes", "qwen3_coder", "llama3_json", "mistral", "pythonic", "openai", "gemma4",
            "functiongemma", "glm45", "seed_oss", "minimax_m2", "minimax", "deepseek_v3", "deepseek_v32", "kimi_k2",
            "cohere_command3", "apertus", "nemotron_json", "granite", "phi4_mini_json", "functionary", "olmo3", "lfm2",
            "minicpm5", "generic",
        ],
        Meta(
            description="how tool calls are found in answers; auto: by the model's response template, or else by "
            "its chat template; generic: calls and texts under a grammar, also by auto if the template shows no format"
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        Literal[
            "auto", "none", "deepseek_r1", "qwen3", "mistral", "openai_gptoss", "gemma4", "cohere_command3", "seed_oss",
            "apertus", "apriel", "granite",
        ],
        Meta(description="how reasoning is separated from the rest of an answer; auto: likewise"),
    ] = "auto"
    # fmt: on
    cpu_threads: Annotated[
        int, Meta(ge=0, description="threads of each engine on a CPU; 0: one for each core, divided by --data-parallel")
    ] = 0
    enforce_eager: Annotated[
        bool,
        Meta(description="launch each operation of a step by itself, without CUDA graphs (on a CPU there are none)"),
    ] = False

    lora: Annotated[
        tuple[str, ...],
        Meta(description="LoRA adapters in PEFT's layout, by the names for clients", extra={"metavar": "NAME=DIR"}),
    ] = ()
    max_loras: Annotated[
        int, Meta(ge=0, le=256, description="LoRA adapters that rows may use at once; 0: as many as --lora names")
    ] = 0
    max_lora_rank: Annotated[int, Meta(ge=1, le=256, description="largest rank of a LoRA adapter")] = 64

    @property
    def num_lora_slots(self) -> int:
        """The number of adapters on the device at once; 0 if LoRA is off."""
        return self.max_loras or len(self.lora)

    @property
    def device_type(self) -> str:
        """`auto`, `cpu` or `cuda`."""
        return self.device.partition(":")[0]

    @property
    def devices(self) -> tuple[str, ...]:
        """The GPUs that `--device` names; empty for the first ones."""
        return tuple(self.device.split(",")) if ":" in self.device else ()


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """KV cache"""

    block_size: Annotated[
        Literal[1, 2, 4, 8, 16, 32, 64, 128], Meta(description="tokens in a page of the KV cache")
    ] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8", "int8"],
        Meta(
            description="number format of the KV cache; auto: that of --dtype; fp8 (e4m3, on a GPU) and int8 (on a "
            "CPU) hold about twice the tokens in the same memory, slightly other text"
        ),
    ] = "auto"
    kv_cache_memory_gb: (
        Annotated[float, Meta(gt=0, description="memory for the KV cache in GiB (default: sized from what is free)")]
        | None
    ) = None
    num_pages: (
        Annotated[int, Positive, Meta(description="pages in the KV cache; overrides the sizing by memory")] | None
    ) = None
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1, description="part of the GPU's memory that weights and KV cache may take")
    ] = 0.9
    enable_prefix_caching: Annotated[
        bool, Meta(description="keep the KV cache of finished requests for prompts with the same beginning")
    ] = True
    keep_kv_cache: Annotated[
        bool, Meta(description="pass the KV cache of a scheduler that dies or is replaced to the next one (on a CPU)")
    ] = True
    kv_populate: Annotated[
        Literal["eager", "background", "never"],
        Meta(
            description="when the KV cache allocates its memory on a CPU; eager: all before the server is ready; "
            "background: an eighth of it, at least 512 MB, ahead of the pages in use, mostly while no step runs; "
            "never: as it is used, which slows down prompts"
        ),
    ] = "background"
    kv_disk: Annotated[
        str,
        Meta(
            description="directory for pages that are evicted from the KV cache; they come back if that is faster "
            "than computing them, also after a restart of the server (default: none)",
            extra={"metavar": "DIR"},
        ),
    ] = ""
    kv_disk_gb: Annotated[
        float, Meta(gt=0, description="GiB that each engine may take in --kv-disk; then the least recently used goes")
    ] = 16.0
    kv_offload_gb: Annotated[
        float,
        Meta(
            ge=0,
            description="GiB of the host's memory, for each engine, for pages that are evicted from a GPU's KV cache; "
            "from there they go to --kv-disk, if it is given",
        ),
    ] = 0.0
    shared_prefix_attention: Annotated[
        bool,
        Meta(description="read pages that several running rows share once for all of them (on a CPU it is never done)"),
    ] = True

    @property
    def has_tiers(self) -> bool:
        """Pages that are evicted from the KV cache are kept elsewhere."""
        return bool(self.kv_disk or self.kv_offload_gb)


class SchedulingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduling"""

    max_num_seqs: Annotated[int, Positive, Meta(description="most rows in one step")] = 256
    max_num_batched_tokens: (
        Annotated[
            int,
            Positive,
            Meta(description="tokens of a step, prefill and decode together (default: 8192; CPU: 512, encoders 2048)"),
        ]
        | None
    ) = None
    overlap: Annotated[
        bool,
        Meta(description="plan a step while the one before it runs, and on a GPU launch it, too"),
    ] = True
    speculative: Annotated[
        Literal["none", "ngram", "draft", "mtp"],
        Meta(
            description="draft tokens that are verified several in one step, which changes no output; ngram: what "
            "followed the same tokens earlier in the prompt or the output, or in another request; draft: what "
            "--draft-model samples; mtp: what the model's own head of multi-token prediction samples"
        ),
    ] = "none"
    draft_model: Annotated[
        str,
        Meta(
            description="for --speculative draft: a directory or name on the hub of a smaller model with the same "
            "tokenizer"
        ),
    ] = ""
    num_speculative_tokens: Annotated[
        int,
        Meta(
            ge=1, le=64, description="most draft tokens of a row in one step; as many as are worth their time are used"
        ),
    ] = 16
    max_batch_seqs: (
        Annotated[
            int,
            Positive,
            Meta(
                description="rows that batches may use at once (default: half of --max-num-seqs; one in 64 while "
                "other requests are open, when the rest of the running ones are paused)"
            ),
        ]
        | None
    ) = None
    max_queued_requests: Annotated[
        int, Meta(ge=0, description="requests that may wait for a row; beyond it clients get 503 with Retry-After")
    ] = 1024
    max_queued_tokens: (
        Annotated[
            int,
            Positive,
            Meta(
                description="prompt tokens that may wait for a row, estimated from a text's length (default: no limit)"
            ),
        ]
        | None
    ) = None
    grammar_timeout_s: float = 10.0
    """Seconds that a grammar may take to compile before it is refused. Not a flag."""
    max_n_sequences: int = 64
    """Most choices of one prompt (`n`, `best_of`). Not a flag."""
    seed: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=2**63 - 1,
                description="start of the random seeds given to requests without one (default: from the clock)",
            ),
        ]
        | None
    ) = None

    def rows_while_live(self) -> int:
        """Number of rows that yielding requests (`YIELDING_PRIORITY`) may use while other requests are open."""
        return self.max_batch_seqs or max(1, self.max_num_seqs // PART_WHILE_LIVE)


class DraftFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The same about the draft model."""

    model_dir: str
    vocab_size: int
    max_model_len: int
    """Its context, or the model's `max_model_len` where that is shorter."""


CHAT_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""llama.cpp's defaults, for chats with people if the model has none of its own."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher found out about the model; not flags."""

    model_dir: str
    tokenizer_dir: str
    served_names: tuple[str, ...]
    vocab_size: int
    max_model_len: int
    """Longest prompt plus output in tokens, `--max-model-len` applied."""
    eos_token_ids: tuple[int, ...] = ()
    sampling_defaults: dict[str, float] = {}
    """For parameters that a request does not set."""
    sampling_source: str = ""
    """Where they are from, in words; empty if there are none."""
    has_chat_template: bool = False
    """The model was trained on chats, or `--chat-template` is given."""
    draft: DraftFacts | None = None
    pooling: PoolingFacts | None = None
    """`None`: the model generates text, and no file of it describes vectors or labels."""
    adapter_table: str = ""
    """The file with the LoRA adapters by name (`runtime/adapter_table.py`); empty if LoRA is off."""
    vector_size: int = 1024
    """Numbers in a vector of the model."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The tree. `facts` is filled by the launcher before any process starts."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    http: HttpConfig = HttpConfig()
    run: RunConfig = RunConfig()
    extras: dict[str, dict[str, Any]] = {}
    """The sections of extras whose flags were given, by the extras' names (`ExtraConfig.of`)."""
    facts: ModelFacts
    first_engine: int = 1
    """Number of the first engine on this machine: not 1 on a machine that joined the server of another one."""
    num_remote_engines: int = 0
    """Engines on other machines that the server begins with."""
    max_engines: int = 0
    """Most engines on this machine if their number changes by itself, otherwise 0."""

    @property
    def num_engines(self) -> int:
        """Number of engines that the server begins with, on all machines."""
        return self.run.data_parallel + self.num_remote_engines

    @property
    def most_engines(self) -> int:
        """Most engines that share this machine, unless an operator starts more."""
        return max(self.run.data_parallel, self.max_engines)


class ExtraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A section with the flags of an extra. The core passes it on without knowing its fields."""

    EXTRA: ClassVar[str]
    """The extra's name."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Returns the section in `config`, with defaults if none of its flags was given."""
        return msgspec.convert(config.extras.get(cls.EXTRA, {}), cls)

    def check(self, config: Config) -> Config:
        """Returns `config` with the consequences of this section. Raises `UsageError` for flags that conflict."""
        return config

    def put_into(self, config: Config) -> Config:
        """Returns `config` with this section."""
        return msgspec.structs.replace(config, extras={**config.extras, self.EXTRA: msgspec.to_builtins(self)})
