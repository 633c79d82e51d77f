"""What an SGLang log says: the stage of a start, and why a server ended. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backend.sglang.state import Stage

KILLED = 128 + 9
READY_LINE = "The server is fired up and ready to roll"
_STAGES = (
    (re.compile("Load weight begin"), Stage.LOADING_WEIGHTS),
    (re.compile("Load weight end"), Stage.ALLOCATING_CACHE),
    (re.compile("Capture .*graph.* begin", re.IGNORECASE), Stage.CAPTURING_GRAPHS),
    (re.compile("Application startup complete"), Stage.WARMING_UP),
)
_ORDER = tuple(Stage)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """Why a server ended, and what helps. Sentences for the screen."""

    reason: str
    remedy: str


@dataclass(frozen=True)
class _Sign:
    pattern: re.Pattern[str]
    reason: str  # may use the pattern's groups
    remedy: str


def _sign(pattern: str, reason: str, remedy: str) -> _Sign:
    return _Sign(re.compile(pattern, re.IGNORECASE), reason, remedy)


# The first that fits counts: the more specific come first.
_SIGNS = (
    _sign(
        r"No module named '?sglang",
        "This Python has no SGLang.",
        "Run `python app.py setup-sglang`, or point --sglang-python at an interpreter that has it.",
    ),
    _sign(
        r"No module named '?sgl_kernel|sgl_kernel.*(?:cannot|failed|could not|not found)|libcudart",
        "SGLang's kernels do not load in this Python.",
        "They need a CUDA that fits the driver: run `python app.py setup-sglang` for an environment of its own.",
    ),
    _sign(
        r"unrecognized arguments: (?P<what>[^\n]+)",
        "This version of SGLang does not know {what}.",
        "Leave the flag out, or use the version it belongs to.",
    ),
    _sign(
        r"invalid choice: '?(?P<what>[^'\n]+)'?",
        "This version of SGLang does not accept the value {what} for a flag.",
        "The end of the log lists the accepted values.",
    ),
    _sign(
        r"address already in use|port (?:at )?\d+ is (?:not available|already in use)|at \d+ is not available",
        "The port is in use.",
        "Stop the program that listens there, or choose another port.",
    ),
    _sign(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "The weights leave no room for a KV cache in the memory share that this server may use.",
        "Raise --mem-fraction-static, use more GPUs (--tp), or end other programs on the GPU.",
    ),
    _sign(
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|DefaultCPUAllocator: can't allocate",
        "The memory of the device is exhausted.",
        "Lower --mem-fraction-static or --context-length, use more GPUs (--tp), or end other programs on the GPU.",
    ),
    _sign(
        r"GatedRepoError|Access to model .* is restricted|gated repo",
        "The model is gated: its owner has to grant access.",
        "Accept its terms on the model's page, then set HF_TOKEN to a token of that account.",
    ),
    _sign(
        r"RepositoryNotFoundError|is not a local folder and is not a valid model identifier|401 Client Error",
        "The model was not found, or this account may not see it.",
        "Check the name; a private model needs HF_TOKEN.",
    ),
    _sign(
        r"LocalEntryNotFoundError|couldn't connect to|Cannot reach|offline mode is enabled",
        "The model is not on this machine and the hub cannot be reached.",
        "Connect the machine, or give the path of a local copy.",
    ),
    _sign(
        r"does not appear to have a file named (?P<what>\S+)|FileNotFoundError: .*?(?P<file>\S+\.(?:json|safetensors))",
        "The model's folder is incomplete.",
        "Download it again: a finished download has config.json and every weight file.",
    ),
    _sign(
        r"trust_remote_code=True|trust-remote-code",
        "The model brings code of its own, which SGLang runs only when told to.",
        "If you trust its author, add --trust-remote-code.",
    ),
    _sign(
        r"no kernel image is available|compute capability|not supported on (?:this )?(?:gpu|device)|sm_\d+ is not",
        "The kernels do not support this GPU.",
        "Choose another --attention-backend (triton runs on most GPUs), or another SGLang version.",
    ),
    _sign(
        r"No CUDA GPUs are available|Torch not compiled with CUDA|No accelerator|Found no NVIDIA driver",
        "SGLang finds no GPU.",
        "Check `nvidia-smi` and CUDA_VISIBLE_DEVICES, and that this Python has a CUDA build of torch.",
    ),
    _sign(
        r"longer than the derived|greater than the derived max_model_len|ALLOW_OVERWRITE_LONGER_CONTEXT_LEN",
        "The context length is longer than the model's config allows.",
        "Lower --context-length, or set SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 for a draft with a shorter one.",
    ),
    _sign(
        r"(?:NCCL|nccl) (?:error|failure)|ncclSystemError|ncclUnhandledCudaError",
        "The GPUs could not talk to each other.",
        "Check the links with `nvidia-smi topo -m`; NCCL_DEBUG=INFO in the environment tells more.",
    ),
)
# SGLang kills its own processes after a crash, so a killed server is not always a victim.
_ENDED_ITSELF = re.compile(r"kill_process_tree called|sigquit", re.IGNORECASE)
# Lines that repeat the options; their words are no sign of anything.
_OPTIONS = re.compile(r"^\$ |server_args=")
_ERROR_LINE = re.compile(r"^\s*(?:[\w.]*(?:Error|Exception)\b|\S*error:).+", re.MULTILINE)


def read_stage(lines: Sequence[str]) -> Stage:
    """The stage that a log has reached. Stages do not go back: the draft's weights load after the target's."""
    reached = Stage.STARTING
    for line in lines:
        for words, stage in _STAGES:
            if words.search(line) and _ORDER.index(stage) > _ORDER.index(reached):
                reached = stage
        if READY_LINE in line:
            return Stage.READY
    return reached


def explain_end(lines: Sequence[str], status: int | None) -> Failure:
    """Why a server ended, from its log and its exit status (128 + signal when it was killed)."""
    text = "\n".join(line for line in lines if not _OPTIONS.search(line))
    for sign in _SIGNS:
        found = sign.pattern.search(text)
        if found:
            groups = {name: (value or "").strip() for name, value in found.groupdict().items()}
            return Failure(sign.reason.format(**groups), sign.remedy)
    if status == KILLED and not _ENDED_ITSELF.search(text):
        return Failure(
            "The server was killed.",
            "If nobody did, the system ran out of memory: its own log (`dmesg`) tells. It can be started again.",
        )
    errors = _ERROR_LINE.findall(text)
    if errors:
        return Failure(f"SGLang ended: {errors[-1].strip()}", "The log tells more; it can be started again.")
    ended = "" if status is None else f" with status {status}"
    return Failure(f"SGLang ended{ended} and did not say why.", "The log tells more; it can be started again.")


def clean_line(line: str) -> str:
    """A log line without terminal colours, and only the last state of a progress bar."""
    return _COLOUR.sub("", line).rstrip("\r\n").rsplit("\r", 1)[-1]
