"""`python -m backend.bench.record`: write the example recordings that ship with the app, from the embedded pair.

Each prompt is answered by both lanes, one after the other, after a warm-up of both and with an empty prefix cache.
Run it again whenever the shipped draft changes; the recordings then say so in their facts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

from backend.client import flush_cache, read_lane, stream_run, tokenize_chat
from backend.embedded_process import EmbeddedProcess, EngineStage, describe_stage
from backend.errors import EagleLensError
from backend.events import Request, Run, RunEnded, Sampling
from backend.hardware import describe_hardware
from backend.lanes import Lane
from backend.recording import Recording, make_recording, save_recording

EAGLE_LABEL, BASELINE_LABEL = "EAGLE-3", "Baseline"
EXAMPLES = ("Sum in steps", "A poem", "Small function")
WARM_UP_TOKENS = 24
START_TIMEOUT = 600.0  # seconds; a first start fetches and packs the weights
FINISHED = ("stop", "length")


@dataclass(frozen=True)
class Example:
    """One prompt to record. `system` is its mode's system prompt, `max_tokens` counts completion tokens."""

    name: str
    system: str
    prompt: str
    max_tokens: int

    @property
    def file_name(self) -> str:
        """What the recording is called."""
        return f"{self.name.lower().replace(' ', '-')}.json"


def load_examples(names: Sequence[str]) -> list[Example]:
    """The presets of these names. Raises EagleLensError where there is no such preset."""
    presets = {one["name"]: one for one in _read_prompts("presets")}
    missing = [name for name in names if name not in presets]
    if missing:
        raise EagleLensError(f"There is no preset {missing[0]!r}. Choose from: {', '.join(presets)}.")
    chosen = [presets[name] for name in names]
    return [
        Example(one["name"], _read_prompts(one["mode"].lower())["system"], one["prompt"], one["max_tokens"])
        for one in chosen
    ]


async def record_pair(lanes: Sequence[Lane], example: Example) -> Recording:
    """One run of each lane on the same prompt ids, greedy. Raises EagleLensError where one does not finish."""
    messages = [{"role": "system", "content": example.system}, {"role": "user", "content": example.prompt}]
    ids = await tokenize_chat(lanes[0], messages)
    for lane in lanes:
        await _answer(lane, Request(uuid4().hex, ids, Sampling(max_tokens=WARM_UP_TOKENS)))
    runs = []
    for lane in lanes:
        await flush_cache(lane)
        runs.append(await _answer(lane, Request(uuid4().hex, ids, Sampling(max_tokens=example.max_tokens))))
    return make_recording(f"{example.name}: {example.prompt}", runs, lanes[0].vocabulary)


async def record_all(
    eagle_url: str, baseline_url: str, examples: Sequence[Example], folder: Path, say: Callable[[str], None]
) -> None:
    """Record every example into `folder`. Raises EagleLensError."""
    lanes = [await read_lane(eagle_url, EAGLE_LABEL), await read_lane(baseline_url, BASELINE_LABEL)]
    for example in examples:
        recording = await record_pair(lanes, example)
        save_recording(recording, folder / example.file_name)
        counts = " and ".join(f"{len(run.tokens)} tokens on {run.lane}" for run in recording.runs)
        say(f"{example.file_name}: {counts}")


def start_engine(arguments: Sequence[str]) -> tuple[EmbeddedProcess, EngineStage]:
    """Start the embedded engine and wait until it answers. Raises EagleLensError where it does not."""
    process = EmbeddedProcess(["--port", "0", "--baseline-port", "0", *arguments])
    process.start()
    stage = process.stage
    while stage.name == "loading":
        changed = process.wait_for_change(stage, START_TIMEOUT)
        if changed == stage:
            process.stop()
            raise EagleLensError(f"The engine did not start within {START_TIMEOUT:.0f} s. {describe_stage(stage)}")
        stage = changed
    if stage.eagle_url is None or stage.baseline_url is None:
        process.stop()
        raise EagleLensError(stage.message)
    return process, stage


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, and return the exit status."""
    options = _parse(arguments)
    process = None
    try:
        examples = load_examples(options.presets)
        urls = options.eagle_url, options.baseline_url
        if options.eagle_url is None:
            process, stage = start_engine(options.engine_options)
            urls = stage.eagle_url, stage.baseline_url
        options.folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(record_all(*urls, examples, options.folder, print))
    except EagleLensError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if process is not None:
            process.stop()
    return 0


async def _answer(lane: Lane, request: Request) -> Run:
    run: Run | None = None
    async with aclosing(stream_run(lane, request)) as events:
        async for event in events:
            if isinstance(event, RunEnded):
                run = event.run
    if run is None or run.finish_reason not in FINISHED:
        said = run.error if run is not None and run.error else f"{lane.label} did not finish its reply. Run it again."
        raise EagleLensError(said)
    return replace(run, server={**run.server, "hardware": describe_hardware()})


def _read_prompts(name: str) -> Any:
    content = files("assets").joinpath(f"prompts/{name}.json").read_text(encoding="utf-8")
    return json.loads(content)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m backend.bench.record", description=__doc__)
    parser.add_argument("--presets", nargs="+", default=list(EXAMPLES), help="names in assets/prompts/presets.json")
    parser.add_argument("--folder", type=Path, default=Path(str(files("assets").joinpath("recordings"))))
    parser.add_argument("--eagle-url", help="a running pair instead of the embedded engine; needs --baseline-url")
    parser.add_argument("--baseline-url", help="its lane without speculation")
    parser.add_argument("--engine-options", nargs=argparse.REMAINDER, default=[], help="passed to the engine as is")
    options = parser.parse_args(arguments)
    if (options.eagle_url is None) != (options.baseline_url is None):
        parser.error("--eagle-url and --baseline-url go together")
    return options


if __name__ == "__main__":
    sys.exit(main())
