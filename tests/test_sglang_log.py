"""What a log says: the stage of a start and why a server ended. Lines as SGLang 0.5.23 and 0.5.6 write them."""

from __future__ import annotations

import pytest

from backend.sglang.server_log import clean_line, explain_end, read_stage
from backend.sglang.state import Stage

START = (
    ("[2026-12-01 00:38:16] Load weight begin. avail mem=17.44 GB", Stage.LOADING_WEIGHTS),
    ("[2026-12-01 00:38:16] Load weight end. elapsed=0.02 s, type=LlamaForCausalLM", Stage.ALLOCATING_CACHE),
    ("Capture cuda graph begin. This can take up to several minutes. avail mem=9.02 GB", Stage.CAPTURING_GRAPHS),
    ("[2026-12-01 00:38:16] Load weight begin. avail mem=8.44 GB", Stage.CAPTURING_GRAPHS),
    ("Capture draft decode CUDA graph begin. backend=full, bs=[1]", Stage.CAPTURING_GRAPHS),
    ("[2026-12-01 00:38:17] INFO:     Application startup complete.", Stage.WARMING_UP),
    ("[2026-12-01 00:38:18] The server is fired up and ready to roll!", Stage.READY),
)


def test_a_start_never_goes_back_a_stage_though_the_draft_loads_after_the_target() -> None:
    lines = [line for line, _ in START]
    reached = [read_stage(lines[: count + 1]) for count in range(len(lines))]
    assert reached == [stage for _, stage in START]


def test_other_lines_leave_the_stage_as_it_is() -> None:
    assert read_stage(["server_args={'model_path': 'x'}"]) == Stage.STARTING


@pytest.mark.parametrize(
    ("line", "reason", "remedy"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "memory of the device", "--mem-fraction-static"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "KV cache", "Raise"),
        ("ERROR: [Errno 98] error while attempting to bind: address already in use", "port is in use", "another port"),
        ("ValueError: nccl_port at 30100 is not available in 60 seconds.", "port is in use", "another port"),
        ("OSError: nobody/none is not a local folder and is not a valid model identifier", "not found", "HF_TOKEN"),
        ("huggingface_hub.errors.GatedRepoError: 403 Client Error.", "gated", "HF_TOKEN"),
        ("RuntimeError: CUDA error: no kernel image is available for execution", "this GPU", "--attention-backend"),
        ("launch_server.py: error: unrecognized arguments: --stream-output", "--stream-output", "Leave the flag out"),
        ("RuntimeError: No CUDA GPUs are available", "no GPU", "nvidia-smi"),
        ("/usr/bin/python: Error while finding module: No module named 'sglang'", "no SGLang", "setup-sglang"),
        ("ValueError: Please pass the argument `trust_remote_code=True`", "code of its own", "--trust-remote-code"),
    ],
)
def test_a_known_failure_has_a_reason_and_a_remedy(line: str, reason: str, remedy: str) -> None:
    failure = explain_end(["Traceback (most recent call last):", line, "kill_process_tree called"], 1)
    assert reason in failure.reason
    assert remedy in failure.remedy


def test_a_killed_server_says_so() -> None:
    assert explain_end(["all was well"], 137).reason == "The server was killed."


def test_a_crash_after_which_sglang_killed_itself_is_told_as_the_crash() -> None:
    lines = ["KeyError: 'layers.4'", "Received sigquit from a child process.", "kill_process_tree called: parent_pid=8"]
    assert explain_end(lines, 137).reason == "SGLang ended: KeyError: 'layers.4'"


def test_the_options_in_a_log_are_not_taken_for_the_reason() -> None:
    lines = ["$ python -m sglang.launch_server --trust-remote-code", "server_args=ServerArgs(trust_remote_code=True)"]
    assert explain_end(lines, 137).reason == "The server was killed."


def test_an_unknown_failure_repeats_the_last_error() -> None:
    failure = explain_end(["ValueError: first", "KeyError: 'second'", "bye"], 1)
    assert failure.reason == "SGLang ended: KeyError: 'second'"


def test_an_end_without_a_word_gives_the_status() -> None:
    assert "status 3" in explain_end([], 3).reason


def test_colours_and_passed_progress_are_left_out() -> None:
    assert clean_line("\x1b[1;33mloading\x1b[0m\n") == "loading"
    assert clean_line("0%\r50%\r100%\n") == "100%"
