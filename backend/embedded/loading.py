"""From options to a ready engine: find the weights, pack or unpack them, pair them with the draft."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from backend.embedded.checkpoint import load_checkpoint
from backend.embedded.config import choose_taps
from backend.embedded.draft import Draft
from backend.embedded.engine import Engine, Names, Text
from backend.embedded.gguf_file import GgufFile
from backend.embedded.linear import DTYPES, Dtype
from backend.embedded.model_files import MODEL_NAME, Progress, cache_folder, find_gguf
from backend.embedded.packed_cache import load_packed, packed_path, save_packed
from backend.embedded.self_check import rows_are_independent
from backend.embedded.target import Target, build_target
from backend.embedded.tuning import choose_threads

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SHIPPED_DRAFT = ASSETS / "draft"
DEFAULT_DTYPE: Dtype = "int4"
DEFAULT_NUM_STEPS = 3
MAX_NUM_STEPS = 8


def load_engine(
    *,
    target: Path | None = None,
    draft: Path | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    num_steps: int | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Engine:
    """Load the built-in pair, or one given by path.

    target: a wheel or GGUF file; None: the built-in SmolLM2. draft: a checkpoint folder; None: the shipped one.
    dtype: one of DTYPES; threads: of torch, None: measured. Raises ValueError, OSError or RuntimeError, each with
    a sentence on what to do.
    """
    chosen = _check_dtype(dtype)
    progress("Reading the draft", 0.02)
    checkpoint = load_checkpoint(draft or SHIPPED_DRAFT)
    model, text, name = _load_gguf_pair(target, chosen, progress)
    taps = checkpoint.tap_layers or choose_taps(model.config.num_layers)
    model.config = replace(model.config, taps=taps)
    if checkpoint.config.target_hidden_size != model.config.hidden_size:
        raise ValueError(
            f"The draft reads hidden states of {checkpoint.config.target_hidden_size} values, the target has "
            f"{model.config.hidden_size}: they are not a pair."
        )
    head = Draft(checkpoint, chosen, model.config.context_length)
    progress("Measuring threads", 0.9)
    used = threads or choose_threads(model)
    torch.set_num_threads(used)
    progress("Checking that drafts cannot change the output", 0.95)
    return Engine(
        model,
        head,
        text,
        Names(name, draft.name if draft else f"EagleLens EAGLE-3 for {MODEL_NAME}"),
        num_steps=DEFAULT_NUM_STEPS if num_steps is None else num_steps,
        max_num_steps=MAX_NUM_STEPS,
        threads=used,
        bit_exact=rows_are_independent(model, DEFAULT_NUM_STEPS + 1),
    )


def _check_dtype(dtype: str | None) -> Dtype:
    if dtype is None:
        return DEFAULT_DTYPE
    for known in DTYPES:
        if dtype == known:
            return known
    raise ValueError(f"Unknown dtype '{dtype}'; choose one of {', '.join(DTYPES)}.")


def _load_gguf_pair(given: Path | None, dtype: Dtype, progress: Progress) -> tuple[Target, Text, str]:
    cache = cache_folder()
    packed_file, text_file = packed_path(cache, MODEL_NAME, dtype), cache / f"{MODEL_NAME}-text.json"
    if given is None and text_file.is_file():
        progress("Reading the packed weights", 0.5)
        packed = load_packed(packed_file)
        if packed is not None:
            return packed, read_text(text_file), MODEL_NAME
    path = find_gguf(given, cache, _scale(progress, 0.05, 0.6))
    progress("Reading the weights", 0.6)
    file = GgufFile(path)
    progress(f"Packing the weights as {dtype}", 0.7)
    built = build_target(file.read_weights(), dtype)
    text = Text(file.read_tokenizer(), file.chat_template, (file.eos_id,), file.special_tokens)
    if given is None:
        save_packed(packed_file, built)
        write_text(text_file, text)
    return built, text, MODEL_NAME if given is None or given.suffix == ".whl" else given.stem


def write_text(path: Path, text: Text) -> None:
    """Keep tokenizer and template beside the packed weights; opening the GGUF takes seconds."""
    contents = {
        "tokenizer": json.loads(text.tokenizer.to_str()),
        "chat_template": text.chat_template,
        "eos_ids": list(text.eos_ids),
        "special_tokens": dict(text.special_tokens),
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(contents))
    partial.replace(path)


def read_text(path: Path) -> Text:
    contents = json.loads(path.read_text())
    return Text(
        Tokenizer.from_str(json.dumps(contents["tokenizer"])),
        contents["chat_template"],
        tuple(contents["eos_ids"]),
        contents["special_tokens"],
    )


def _scale(progress: Progress, start: float, end: float) -> Progress:
    return lambda message, fraction: progress(message, start + (end - start) * fraction)
