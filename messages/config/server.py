"""The configuration of a run: one frozen tree, parsed once by the launcher, read by every process.

A field is a flag: `max_num_seqs` is `--max-num-seqs`; its annotation holds the range and the help text (with the
unit), so `--help`, the checks and the processes read the same source (`supervisor/flags.py`).
"""

from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import Meta

from messages.config.flag import Flag, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from messages.config.http import HttpConfig
from messages.config.images import ImageConfig, VisionFacts
from messages.config.pooling import PoolingFacts
from messages.config.processes import RunConfig
from messages.config.scheduling import SchedulingConfig


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Model"""

    model: Annotated[
        str,
        Flag(
            "model to serve: a directory in Hugging Face format, a GGUF file, or a Hugging Face Hub ID; empty: the "
            "bundled model"
        ),
    ] = ""
    gguf_file: Annotated[
        str, Flag("GGUF file to load when the directory or repository in --model has several", metavar="NAME")
    ] = ""
    served_model_name: Annotated[tuple[str, ...], Flag("model names that the API accepts (default: --model)")] = ()
    tokenizer: Annotated[str, Flag("directory, GGUF file or Hub ID of the tokenizer (default: --model)")] = ""
    revision: Annotated[str, Flag("branch, tag or commit of the model on the Hub (default: main)")] = "main"
    model_impl: Annotated[
        Literal["auto", "native", "transformers"],
        Flag(
            "model implementation; native: Sluice's own kernels; transformers: the Transformers implementation with "
            "Sluice's paged attention, slower, for decoders whose only cache is K and V; auto: native if the "
            "architecture is supported, otherwise transformers"
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Flag(
            "data type of weights and KV cache; auto: bfloat16 if the device computes it natively, otherwise float32; "
            "encoders with float32 weights and GGUF block types on a CPU compute in float32 (their KV cache is "
            "float16); linear layers of such encoders multiply in bfloat16 if the CPU does so faster; on a CPU a token "
            "has the same bits in any batch, cached, drafted or after a restart, in each of them"
        ),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8", "int4", "fp8"],
        Flag(
            "quantize the weights of linear layers while loading: int8 and int4 on a CPU and for experts of "
            "--cpu-experts, fp8 (e4m3) on a GPU; less memory and faster, with slightly different output; int8 also "
            "quantizes activations to 8 bits (W8A8)"
        ),
    ] = "none"
    weight_cache: Annotated[
        bool, Flag("cache quantized weights for the next start, in $XDG_CACHE_HOME/sluice or ~/.cache/sluice")
    ] = True
    share_weights: Annotated[
        bool,
        Flag("share one copy of the weights between all engines, and between a process and its replacement (CPU only)"),
    ] = True
    device: Annotated[
        str,
        Flag(
            "device to run on: auto, cpu, cuda, or a list of GPUs such as cuda:0,cuda:1, one per rank of each engine; "
            "auto: cuda if available, otherwise cpu",
            metavar="NAME",
        ),
    ] = "auto"
    max_model_len: Annotated[
        PositiveInt | None, Flag("context length: maximum prompt plus output tokens (default: from the model)")
    ] = None
    load_format: Annotated[
        Literal["auto", "safetensors", "pt", "gguf", "dummy"],
        Flag("format of the weight files; dummy: random weights of the model's shape"),
    ] = "auto"
    generation_config: Annotated[
        Literal["auto", "none"],
        Flag(
            "source of the default sampling parameters; auto: the model's generation_config.json; none: the API "
            "defaults"
        ),
    ] = "auto"
    chat_template: Annotated[
        str, Flag("path of a Jinja chat template (default: the model's template, or a plain one if it has none)")
    ] = ""
    # fmt: off
    tool_call_parser: Annotated[
        Literal[
            "auto", "none", "hermes", "qwen3_coder", "llama3_json", "mistral", "pythonic", "openai", "gemma4",
            "functiongemma", "glm45", "seed_oss", "minimax_m2", "minimax", "deepseek_v3", "deepseek_v32", "kimi_k2",
            "cohere_command3", "apertus", "nemotron_json", "granite", "phi4_mini_json", "functionary", "olmo3", "lfm2",
            "minicpm5", "generic",
        ],
        Flag("parser for tool calls; auto: selected from the model's response template or chat template; generic: "
             "grammar-constrained calls for any model, also selected by auto if the template has no known format"),
    ] = "auto"
    reasoning_parser: Annotated[
        Literal[
            "auto", "none", "deepseek_r1", "qwen3", "mistral", "openai_gptoss", "gemma4", "cohere_command3", "seed_oss",
            "apertus", "apriel", "granite",
        ],
        Flag("parser that separates reasoning from the answer; auto: selected like --tool-call-parser"),
    ] = "auto"
    # fmt: on
    cpu_threads: Annotated[
        NonNegativeInt, Flag("CPU threads per engine; 0: the number of cores divided by --data-parallel")
    ] = 0
    enforce_eager: Annotated[bool, Flag("disable CUDA graphs; no effect on a CPU")] = False
    cpu_experts: Annotated[
        str,
        Meta(pattern="^(none|all|auto|[0-9]+)$"),
        Flag(
            "layers of a mixture of experts whose experts stay in the host's memory and are computed by its "
            "processors (GPU only): none, all, the number of the first layers, or auto: as few as leave room on the "
            "GPU for one request of full length",
            metavar="none|auto|all|N",
        ),
    ] = "none"
    deterministic: Annotated[
        bool,
        Flag(
            "compute a token to the same bits in any batch, prompt or chunk, with a cache hit, drafts or after a "
            "restart; slower on a GPU; no effect on a CPU, which always does"
        ),
    ] = False

    lora: Annotated[
        tuple[str, ...],
        Flag("LoRA adapters to load (PEFT format), with the names that clients use", metavar="NAME=DIR"),
    ] = ()
    max_loras: Annotated[
        int, Meta(ge=0, le=256), Flag("maximum number of LoRA adapters in one step; 0: the number of --lora adapters")
    ] = 0
    max_lora_rank: Annotated[int, Meta(ge=1, le=256), Flag("maximum rank of a LoRA adapter")] = 64

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

    block_size: Annotated[Literal[1, 2, 4, 8, 16, 32, 64, 128], Flag("tokens per page of the KV cache")] = 16
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8", "int8"],
        Flag(
            "data type of the KV cache; auto: the same as --dtype; fp8 (e4m3, GPU) and int8 (CPU) fit about twice as "
            "many tokens, with slightly different output"
        ),
    ] = "auto"
    kv_cache_memory_gb: Annotated[
        PositiveFloat | None, Flag("size of the KV cache in GiB (default: from the free memory)")
    ] = None
    num_pages: Annotated[
        PositiveInt | None, Flag("number of pages in the KV cache; overrides the sizing by memory")
    ] = None
    gpu_memory_utilization: Annotated[
        float, Meta(gt=0, le=1), Flag("fraction of GPU memory for weights and KV cache")
    ] = 0.9
    enable_prefix_caching: Annotated[
        bool, Flag("reuse the KV cache of earlier requests for prompts with the same prefix")
    ] = True
    keep_kv_cache: Annotated[
        bool, Flag("hand the KV cache to the replacement of a scheduler that dies or is restarted (CPU only)")
    ] = True
    kv_populate: Annotated[
        Literal["eager", "background", "never"],
        Flag(
            "when the memory of the KV cache is allocated on a CPU; eager: before the server is ready; background: an "
            "eighth of it (at least 512 MB) ahead of use, mostly while idle; never: on first use, which slows down "
            "prefill"
        ),
    ] = "background"
    kv_disk: Annotated[
        str,
        Flag(
            "directory to which evicted pages are offloaded; they are loaded again when that is faster than "
            "recomputing them, even after a restart (default: none)",
            metavar="DIR",
        ),
    ] = ""
    kv_disk_gb: Annotated[
        PositiveFloat,
        Flag("maximum size of --kv-disk per engine, in GiB; the least recently used pages are deleted first"),
    ] = 16.0
    kv_offload_gb: Annotated[
        NonNegativeFloat,
        Flag(
            "host memory per engine for pages evicted from a GPU's KV cache, in GiB; pages evicted from there move to "
            "--kv-disk, if set"
        ),
    ] = 0.0
    shared_prefix_attention: Annotated[
        bool, Flag("read pages shared by several running rows once for all of them (GPU only)")
    ] = True

    @property
    def has_tiers(self) -> bool:
        """Pages that are evicted from the KV cache are kept elsewhere."""
        return bool(self.kv_disk or self.kv_offload_gb)


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

    model_dir: str = ""
    tokenizer_dir: str = ""
    served_names: tuple[str, ...] = ()
    vocab_size: int = 0
    max_model_len: int = 0
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
    hop_size: int = 0
    """Numbers of a token that a stage of a pipeline sends to the next one."""
    vision: VisionFacts | None = None
    """`None`: the model reads no images."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The tree. `facts` is filled by the launcher before any process starts."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    http: HttpConfig = HttpConfig()
    images: ImageConfig = ImageConfig()
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
    num_remote_stages: int = 0
    """The first stages of each engine's pipeline, ranks 1, 2 …, that are on machines of their own."""
    joined_rank: int = 0
    """On such a machine the number of its rank, otherwise 0."""

    @property
    def num_engines(self) -> int:
        """Number of engines that the server begins with, on all machines."""
        return self.run.data_parallel + self.num_remote_engines

    @property
    def max_local_engines(self) -> int:
        """Most engines that share this machine, unless an operator starts more."""
        return max(self.run.data_parallel, self.max_engines)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of an engine that are on this machine."""
        return (self.joined_rank,) if self.joined_rank else (0, *range(1 + self.num_remote_stages, self.run.num_ranks))


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
