"""Field names of other servers' APIs that ours does not have."""

from typing import Any

RENAMED = {
    "max_new_tokens": "max_tokens",  # TGI, SGLang, transformers
    "min_new_tokens": "min_tokens",  # SGLang, transformers
    "random_seed": "seed",  # Mistral
    "nsigma": "top_n_sigma",  # Aphrodite
    "rep_pen": "repetition_penalty",  # KoboldCpp
    "repeat_penalty": "repetition_penalty",  # llama.cpp, Ollama
    "sampling_seed": "seed",  # SGLang
    "typical": "typical_p",  # KoboldCpp
    "dry_range": "dry_penalty_last_n",  # Aphrodite
    "regex": "guided_regex",  # SGLang
    "ebnf": "guided_grammar",  # SGLang
    "grammar": "guided_grammar",  # llama.cpp, KoboldCpp
    "json_schema": "guided_json",  # SGLang, llama.cpp
}
"""Other servers' names for fields of ours with exactly the same meaning."""

NEUTRAL: dict[str, tuple[Any, ...]] = {"regex": ("",), "ebnf": ("",), "grammar": ("",), "json_schema": ("", {})}
"""Values of these names by which clients set no constraint."""

_OF_SERVERS = {
    "llama.cpp": """
        n_predict n_keep n_discard n_indent n_probs cache_prompt id_slot slot_id samplers tfs_z
        mirostat_tau mirostat_eta dynatemp_range dynatemp_exponent
        repeat_last_n penalize_nl min_keep return_tokens post_sampling_probs response_fields t_max_predict_ms
        timings_per_token return_progress reasoning_format thinking_forced_open
    """,
    "Ollama": """
        options num_predict num_ctx num_keep raw template system think
    """,
    "TGI": """
        inputs parameters do_sample return_full_text truncate watermark decoder_input_details details
        top_n_tokens stop_sequences guideline
    """,
    "SGLang": """
        text input_ids sampling_params rid no_stop_trim stop_regex return_logprob logprob_start_len
        top_logprobs_num return_text_in_logprobs custom_logit_processor session_params separate_reasoning
        stream_reasoning return_hidden_states bootstrap_host bootstrap_port bootstrap_room data_parallel_rank
    """,
    "KoboldCpp": """
        max_context_length max_length rep_pen_range rep_pen_slope sampler_order sampler_seed stop_sequence top_a
        tfs smoothing_factor dynatemp use_default_badwordsids memory trim_stop render_special bypass_eos
        banned_tokens genkey quiet
    """,
    "Aphrodite, text-generation-webui": """
        temperature_last dynatemp_min dynatemp_max smoothing_curve skew eta_cutoff epsilon_cutoff
        custom_token_bans token_ban_ranges no_repeat_ngram_size repetition_penalty_range
        encoder_repetition_penalty penalty_alpha guidance_scale negative_prompt truncation_length ban_eos_token
        add_bos_token auto_max_new_tokens preset mode character instruction_template prompt_lookup_num_tokens
        min_length
    """,
    "vLLM": """
        logprob_token_ids vllm_xargs kv_transfer_params chat_template_content_format
        return_mm_hashes repetition_detection detokenize flat_logprobs
    """,
    "gateways (OpenRouter, LiteLLM)": """
        models route provider transforms plugins reasoning include usage timeout retries num_retries fallbacks
        api_key api_base base_url extra_body extra_headers tags debug
    """,
}
"""By the server that introduced them; several servers share some names."""

FOREIGN = frozenset(name for names in _OF_SERVERS.values() for name in names.split())
"""Fields without a counterpart here: some change a sampler that we do not have, others address another machine."""
