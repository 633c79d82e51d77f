"""What clients may ask, in SGLang's field names, checked; and the one internal form that all of it becomes."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from backend.embedded.engine_protocol import Engine
from backend.embedded.stop import StopRule

Body = TypeVar("Body", bound=BaseModel)

DEFAULT_MODEL = "default"
GREEDY_BELOW = 1e-6  # SGLang's bound: a smaller temperature is greedy
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024


class RequestError(ValueError):
    """A request that cannot be served as it stands; the message says what to change. HTTP 400.

    `kind` is the `type` of SGLang's error body.
    """

    def __init__(self, message: str, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Job:
    """One reply to generate."""

    rid: str
    speculative: bool  # asked at the EAGLE-3 address
    prompt_ids: tuple[int, ...]
    temperature: float
    top_p: float
    seed: int | None
    num_steps: int  # drafts per verify step; 0: the draft is off
    stop: StopRule
    skip_special_tokens: bool
    keep_stop: bool  # leave the stop string in the text


class Extension(BaseModel):
    """EagleLens' own request fields, under the key `eaglelens`."""

    model_config = ConfigDict(extra="forbid")

    num_steps: int | None = Field(default=None, ge=0)


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Sampling(BaseModel):
    """The sampling fields shared by all three generating endpoints.

    Fields of SGLang that the engine cannot honour are accepted at their neutral value only, so that no reply
    pretends to be what was asked.
    """

    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = True
    no_stop_trim: bool | None = False

    n: int | None = 1
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    stop_regex: str | list[str] | None = None
    watermark: dict[str, Any] | None = None
    custom_params: dict[str, Any] | None = None

    @field_validator("temperature")
    @classmethod
    def check_temperature(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ValueError(f"temperature must be a non-negative finite number, got {value}.")
        return value

    @field_validator("top_p")
    @classmethod
    def check_top_p(cls, value: float | None) -> float | None:
        if value is not None and not 0 < value <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {value}.")
        return value

    @field_validator("stop")
    @classmethod
    def check_stop(cls, value: str | list[str] | None) -> str | list[str] | None:
        strings = [value] if isinstance(value, str) else value or []
        if len(strings) > MAX_STOP_STRINGS or any(len(string) > MAX_STOP_CHARACTERS for string in strings):
            raise ValueError(
                f"stop may hold up to {MAX_STOP_STRINGS} strings of up to {MAX_STOP_CHARACTERS} characters."
            )
        return value

    @property
    def stop_strings(self) -> tuple[str, ...]:
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(string for string in strings if string)


# What else a field may hold besides its absence without changing the reply.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "top_k": (-1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "min_new_tokens": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "json_schema": ("",),
    "regex": ("",),
    "ebnf": ("",),
    "structural_tag": ("",),
    "stop_regex": ("", []),
    "watermark": ({},),
    "custom_params": ({},),
    "stream_interval": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "return_logprob": (False,),
    "return_hidden_states": (False,),
    "lora_path": (),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "image_data": (),
    "input_embeds": (),
}


def refuse_unsupported(request: BaseModel) -> None:
    """Raises RequestError naming the first field that asks for what the embedded engine cannot do."""
    for name, neutral in NEUTRAL.items():
        value = getattr(request, name, None)
        if value is not None and not any(_is_same_value(value, one) for one in neutral):
            raise RequestError(
                f"{name} = {reprlib.repr(value)} is not supported by the embedded engine; leave {name} out."
            )


def _is_same_value(value: object, other: object) -> bool:
    # A bool is an int: logprobs=0 asks for logprobs, logprobs=False does not.
    return value == other and isinstance(value, bool) == isinstance(other, bool)


class CompletionRequest(Sampling):
    """Body of /v1/completions."""

    model: str = DEFAULT_MODEL
    prompt: str | list[int] | list[list[int]] | list[str]
    max_tokens: int | None = 16
    seed: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    rid: str | None = None
    return_token_ids: bool = False
    return_spec_tokens_details: bool = False
    return_cached_tokens_details: bool = False
    eaglelens: Extension | None = None

    best_of: int | None = None
    echo: bool | None = False
    suffix: str | None = None
    logprobs: int | bool | None = None
    min_tokens: int | None = 0
    response_format: dict[str, Any] | None = None
    return_hidden_states: bool | str | None = False
    lora_path: str | list[str | None] | None = None

    @field_validator("max_tokens")
    @classmethod
    def check_max_tokens(cls, value: int | None) -> int | None:
        return _check_positive("max_tokens", value)

    @property
    def only_prompt(self) -> str | list[int]:
        """The single prompt. Raises RequestError where there is none, or where there are several."""
        prompt = self.prompt
        if not prompt or (isinstance(prompt, list) and all(part in ("", []) for part in prompt)):
            raise RequestError("Prompt cannot be empty")
        if isinstance(prompt, str):
            return prompt
        ids = [part for part in prompt if isinstance(part, int)]
        if len(ids) == len(prompt):
            return ids
        if len(prompt) > 1:
            raise RequestError(
                "The embedded engine takes one prompt per request; send the others as requests of their own."
            )
        only = prompt[0]
        assert not isinstance(only, int)
        return only


class ChatRequest(Sampling):
    """Body of /v1/chat/completions."""

    model: str = DEFAULT_MODEL
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    rid: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = False
    return_token_ids: bool = False
    return_prompt_token_ids: bool = False
    return_meta_info: bool = False
    return_spec_tokens_details: bool = False
    return_cached_tokens_details: bool = False
    return_input_ids_in_sglext: bool = False
    return_output_ids_in_sglext: bool = False
    eaglelens: Extension | None = None

    logprobs: bool | None = False
    top_logprobs: int | None = None
    min_tokens: int | None = 0
    response_format: dict[str, Any] | None = None
    return_hidden_states: bool | str | None = False
    lora_path: str | list[str | None] | None = None
    tools: list[dict[str, Any]] | None = None

    @field_validator("max_tokens", "max_completion_tokens")
    @classmethod
    def check_max_tokens(cls, value: int | None) -> int | None:
        return _check_positive("max_tokens", value)

    def refuse_streamed_ids(self) -> None:
        """SGLang streams chat without ids and without meta info, and says so."""
        if not self.stream:
            return
        for name, place in (
            ("return_prompt_token_ids", ""),
            ("return_token_ids", " on /v1/chat/completions"),
            ("return_meta_info", ""),
        ):
            if getattr(self, name):
                raise RequestError(
                    f"{name} is not supported with streaming{place}. Please set stream=false when using {name}=true.",
                    kind="BadRequest",
                )


class GenerateSampling(Sampling):
    """`sampling_params` of /generate: a name that SGLang does not know is refused."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: int | None = 128
    sampling_seed: int | None = None
    min_new_tokens: int | None = 0
    stream_interval: int | None = None
    spaces_between_special_tokens: bool | None = True
    beam_width: int | None = None

    @field_validator("max_new_tokens")
    @classmethod
    def check_max_new_tokens(cls, value: int | None) -> int | None:
        return _check_positive("max_new_tokens", value)


class GenerateRequest(BaseModel):
    """Body of /generate."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: GenerateSampling = Field(default_factory=GenerateSampling)
    stream: bool | None = False
    rid: str | None = None
    eaglelens: Extension | None = None

    return_logprob: bool | None = False
    return_hidden_states: bool | str | None = False
    lora_path: str | None = None
    image_data: Any = None
    input_embeds: Any = None

    @model_validator(mode="after")
    def check_prompt(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("Exactly one of text and input_ids must be provided.")
        return self


class TokenizeRequest(BaseModel):
    """Body of /tokenize: a prompt, a list of prompts, or messages for the chat template."""

    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def check_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("Exactly one of 'prompt' or 'messages' must be provided.")
        if self.messages == []:
            raise ValueError("messages must hold at least one message.")
        return self


class DetokenizeRequest(BaseModel):
    """Body of /detokenize: one list of ids, or a list of such lists."""

    tokens: list[int] | list[list[int]]
    skip_special_tokens: bool = True


class AbortRequest(BaseModel):
    """Body of /abort_request. `rid` is the id of a request, or of several: those that begin with it end too."""

    rid: str | None = None
    abort_all: bool = False


def parse_body(kind: type[Body], body: bytes) -> Body:
    """The checked request of a JSON body. Raises RequestError saying which field is wrong and how."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise RequestError(_explain(error), kind="Bad Request") from error


def _explain(error: ValidationError) -> str:
    # A union reports every alternative that failed; the first one's field name says enough, its type does not.
    first = error.errors(include_url=False)[0]
    depth = 2 if first["loc"][:1] in (("sampling_params",), ("eaglelens",), ("stream_options",)) else 1
    place = ".".join(str(part) for part in first["loc"][:depth])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return f"The request body is not valid JSON: {message.removeprefix('Invalid JSON: ')}."
    if first["type"] == "extra_forbidden":
        return f"{place} is not a known parameter."
    return message if first["type"] == "value_error" or not place else f"{place}: {message}."


def plan_job(
    engine: Engine,
    *,
    rid: str,
    speculative: bool,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    max_new_tokens: int | None,
    seed: int | None,
    extension: Extension | None,
) -> Job:
    """The job that a checked request stands for, within the engine's limits.

    `max_new_tokens` None fills the context. As in SGLang, `ignore_eos` switches `stop_token_ids` off too.
    Raises RequestError where prompt and completion do not fit, or where the engine lacks what is asked.
    """
    refuse_unsupported(sampling)
    _check_prompt(prompt_ids, engine.vocab_size, engine.context_length)
    room = engine.context_length - len(prompt_ids)
    if max_new_tokens is not None and max_new_tokens > room:
        raise RequestError(
            f"Requested token count exceeds the model's maximum context length of {engine.context_length} tokens. "
            f"You requested a total of {len(prompt_ids) + max_new_tokens} tokens: {len(prompt_ids)} tokens from the "
            f"input messages and {max_new_tokens} tokens for the completion. Please reduce the number of tokens in "
            "the input messages or the completion to fit within the limit."
        )
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise RequestError(f"seed must be in [-2**63, 2**63 - 1], got {seed}.")
    asked = extension.num_steps if extension else None
    if asked is not None and asked > engine.max_num_steps:
        raise RequestError(f"eaglelens.num_steps must be between 0 and {engine.max_num_steps}, got {asked}.")
    if asked and not speculative:
        raise RequestError(
            "This is the baseline address, which has no draft; ask for num_steps at the EAGLE-3 address."
        )
    stop_ids = () if sampling.ignore_eos else (*engine.eos_ids, *(sampling.stop_token_ids or ()))
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    return Job(
        rid=rid,
        speculative=speculative,
        prompt_ids=tuple(prompt_ids),
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        seed=seed,
        num_steps=(engine.num_steps if asked is None else asked) if speculative else 0,
        stop=StopRule(
            max_new_tokens=room if max_new_tokens is None else max_new_tokens,
            strings=sampling.stop_strings,
            token_ids=frozenset(stop_ids),
        ),
        skip_special_tokens=sampling.skip_special_tokens is not False,
        keep_stop=bool(sampling.no_stop_trim),
    )


def _check_prompt(prompt_ids: Sequence[int], vocab_size: int, context_length: int) -> None:
    if not prompt_ids:
        raise RequestError("Prompt cannot be empty")
    if len(prompt_ids) >= context_length:
        raise RequestError(
            f"The input ({len(prompt_ids)} tokens) is longer than the model's context length ({context_length} tokens)."
        )
    check_ids(prompt_ids, vocab_size)


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raises RequestError where an id is outside the vocabulary."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"Token id {token_id} is outside the vocabulary (0 to {vocab_size - 1}).")


def flatten_content(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text parts joined into one string, as templates for plain text want it."""
    if not isinstance(message.get("role"), str):
        raise RequestError("Each message needs a role, such as 'user'.")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return {**message, "content": content or ""}
    if not isinstance(content, list):
        raise RequestError("The content of a message must be text.")
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("The embedded engine reads text only; send messages without images, audio or video.")
    return {**message, "content": " ".join(str(text) for text in texts)}


def _check_positive(name: str, value: int | None) -> int | None:
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be positive, got {value}.")
    return value
