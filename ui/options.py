"""The command line: its options, and what they ask for."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from backend.catalog import Pair, find_pair, list_offered, make_pair
from backend.sglang.launch_plan import LaunchWish
from backend.sglang.launch_spec import Nodes

SETUP_SGLANG = "setup-sglang"
ABOUT = "EagleLens: watch EAGLE-3 speculative decoding as it happens."


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line as options; what stands behind `--` is `engine_options`. Exits with status 2 where it is wrong.

    `engine` is settled here: "attached", "sglang" or "embedded".
    """
    own, dashes, passed = _split(arguments)
    parser = _make_parser()
    options = parser.parse_args(own)
    options.engine_options = list(passed)
    problem = _find_conflict(options) or _find_bad_certificate(options.ca_file)
    if problem:
        parser.error(problem)
    options.engine = _choose_engine(options)
    if dashes and options.engine == "attached":
        parser.error("flags behind -- go to an engine, and attaching starts none")
    return options


def list_embedded_options(options: argparse.Namespace) -> list[str]:
    """The arguments of the embedded engine, but for the pair, which has to be fetched first."""
    given = {
        "--port": options.engine_port,
        "--baseline-port": options.engine_baseline_port,
        "--dtype": options.dtype,
        "--device": options.device,
        "--num-steps": options.steps,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return [*words, *options.engine_options]


def read_wish(options: argparse.Namespace) -> LaunchWish:
    """What SGLang is to serve. Raises LookupError or ValueError, whose messages are for the person."""
    nodes = None
    if options.nnodes is not None:
        nodes = Nodes(options.nnodes, options.node_rank, options.dist_init_addr)
    return LaunchWish(
        pair=_read_pair(options),
        python=options.sglang_python,
        flags=tuple(options.engine_options),
        port=options.engine_port,
        baseline_port=options.engine_baseline_port,
        baseline_gpus=options.baseline_gpus,
        nodes=nodes,
    )


def describe_pairs() -> str:
    """The offered pairs, a line each: name, target and draft."""
    pairs = list_offered()
    width = max(len(pair.name) for pair in pairs)
    return "\n".join(f"{pair.name:{width}}  {pair.target} + {pair.draft or 'its own layers'}" for pair in pairs)


def _read_pair(options: argparse.Namespace) -> Pair:
    if options.pair is None:
        pair = make_pair(options.target, options.draft, options.steps, options.topk, options.draft_tokens)
    else:
        pair = find_pair(options.pair)
        if (options.steps, options.topk, options.draft_tokens) != (None, None, None):
            own = make_pair(pair.target, pair.draft, options.steps, options.topk, options.draft_tokens)
            speculation = replace(own.speculation, algorithm=pair.speculation.algorithm)
            pair = replace(pair, speculation=speculation)
    return pair if options.dtype is None else replace(pair, dtype=options.dtype)


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], bool, Sequence[str]]:
    if "--" not in arguments:
        return arguments, False, ()
    at = list(arguments).index("--")
    return arguments[:at], True, arguments[at + 1 :]


def _choose_engine(options: argparse.Namespace) -> str:
    if options.eagle_url:
        return "attached"
    if options.engine:
        return str(options.engine)
    return "sglang" if options.pair or options.target else "embedded"


def _find_conflict(options: argparse.Namespace) -> str:
    """What is wrong with options that do not go together; empty where nothing is."""
    attached = bool(options.eagle_url)
    served = bool(options.pair or options.target or options.draft or options.engine)
    nodes = (options.nnodes, options.node_rank, options.dist_init_addr)
    rules = (
        (options.baseline_url and not attached, "--baseline-url needs --eagle-url beside it"),
        (attached and served, "--eagle-url attaches to servers that run: leave --pair, --target and --engine out"),
        ((options.api_key or options.ca_file) and not attached, "--api-key and --ca-file belong to --eagle-url"),
        (options.pair and (options.target or options.draft), "give --pair, or --target with --draft, not both"),
        (
            options.draft and not options.target and options.engine != "embedded",
            "--draft needs --target beside it, or --engine embedded for a draft of its built-in target",
        ),
        (
            options.engine == "embedded" and (options.topk or options.draft_tokens),
            "the embedded engine drafts chains: give --steps alone",
        ),
        (
            options.device and _choose_engine(options) != "embedded",
            "--device is for the embedded engine: SGLang takes its own behind --",
        ),
        (options.engine == "embedded" and options.pair, "the embedded engine runs no --pair: leave --engine out"),
        (
            options.engine == "sglang" and not (options.pair or options.target),
            "--engine sglang needs --pair NAME (--list-pairs shows them), or --target with --draft",
        ),
        (
            any(part is not None for part in nodes) and None in nodes,
            "several nodes need --nnodes, --node-rank and --dist-init-addr together",
        ),
        (
            any(part is not None for part in nodes) and not (options.pair or options.target),
            "--nnodes belongs to --pair or --target",
        ),
    )
    return next((message for broken, message in rules if broken), "")


def _find_bad_certificate(ca_file: str | None) -> str:
    """Why a certificate bundle cannot be used; empty where it can, or there is none."""
    if ca_file is None:
        return ""
    try:
        ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        return f"--ca-file {ca_file} is no certificate bundle in PEM form ({error.strerror or error})"
    return ""


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="app.py",
        description=ABOUT,
        epilog="Without options the embedded engine runs, on any CPU. Everything behind -- is passed to the engine.",
    )
    add = parser.add_argument
    add("command", nargs="?", choices=(SETUP_SGLANG,), help="install SGLang in an environment of its own, and end")
    add("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: every interface)")
    add("--port", type=int, default=7860, help="port of the page; the next free one is taken if in use")
    add("--share", action="store_true", help="also ask for a public Gradio link")
    add("--no-browser", action="store_true", help="do not open a browser")
    add("--engine", choices=("sglang", "embedded"), help="default: sglang with --pair or --target, else embedded")
    add("--engine-port", type=int, default=0, help="port of the EAGLE-3 address (default: a free one)")
    add("--engine-baseline-port", type=int, default=0, help="port of the baseline address (default: a free one)")
    _add_pair(parser)
    _add_machine(parser)
    _add_attach(parser)
    return parser


def _add_pair(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what to run").add_argument
    add("--pair", metavar="NAME", help="a target with its draft on SGLang, such as llama-3.1-8b")
    add("--list-pairs", action="store_true", help="show the names that --pair takes, and end")
    add("--target", metavar="MODEL", help="a pair of your own: repository or folder (embedded engine: a GGUF file too)")
    add("--draft", metavar="MODEL", help="its EAGLE-3 draft: repository or folder")
    add("--steps", "--num-steps", dest="steps", type=int, metavar="N", help="drafts per verify step")
    add("--topk", type=int, metavar="N", help="branches per draft step (SGLang; 1: a chain)")
    add("--draft-tokens", type=int, metavar="N", help="tokens verified per step (SGLang; steps + 1 for a chain)")
    add(
        "--dtype",
        help="of the weights: bfloat16 and such for SGLang; w8a8, int4, int8, bf16, fp32 for the embedded one",
    )
    add("--device", metavar="NAME", help="of the embedded engine, as torch names it: cuda, mps, ... (default: cpu)")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("SGLang on this machine").add_argument
    add("--sglang-python", type=Path, metavar="PATH", help="the interpreter that has SGLang (default: setup-sglang's)")
    add("--baseline-gpus", type=_read_gpus, default=(), metavar="2,3", help="GPUs for the baseline alone")
    add("--nnodes", type=int, metavar="N", help="machines that serve together; run the same command on each")
    add("--node-rank", type=int, metavar="R", help="which of them this is; the page of node 0 is the one to open")
    add("--dist-init-addr", metavar="HOST:PORT", help="where they meet: an address of node 0")


def _add_attach(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("attach to servers that run").add_argument
    add("--eagle-url", help="a server with EAGLE-3, such as http://127.0.0.1:30000")
    add("--baseline-url", help="the same target on a server without speculation")
    add("--api-key", help="the key that both were started with")
    add("--ca-file", metavar="PATH", help="a certificate bundle that vouches for their https addresses")


def _read_gpus(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPU numbers such as 2,3") from None
