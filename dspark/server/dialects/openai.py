"""What chat completions and completions have in common: tools, formats, usage, and the last frames of a stream."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from dspark.server.dialects.asked import stop_words
from dspark.server.dialects.wire import Schema, StrOrList, Wire, invalid
from dspark.server.order import ResponseFormat, Tool
from dspark.server.parts import Ending, TokenScore, Usage

MAX_STOPS = 4
StopField = StrOrList[str]


class FunctionField(Wire):
    """The function of a tool."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """As an order holds it."""
        return function_tool(self.name, self.description, self.parameters, self.strict)


def function_tool(
    name: str, description: str | None = None, parameters: Schema | None = None, strict: bool | None = None
) -> Tool:
    """A function as the model knows it, with whatever was left out."""
    described = {"type": "object", "properties": {}, **(parameters or {})}
    return Tool(name, description or "", described, strict=bool(strict))


class SchemaField(Wire):
    """A named JSON schema."""

    name: str | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


class FormatField(Wire):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaField | None = None

    def wanted(self) -> ResponseFormat | None:
        """None for text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return ResponseFormat()
        named = self.json_schema
        if named is None or named.schema_ is None:
            raise invalid([(("response_format", "json_schema", "schema"), "Field required")])
        return ResponseFormat(named.schema_, named.name, bool(named.strict))


class StreamOptions(Wire):
    """`stream_options`."""

    include_usage: bool | None = None


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """At most four stop strings; empty ones are dropped.

    Raises:
        ValidationFailed: there are more, or they are too long.
    """
    words = [stop] if isinstance(stop, str) else stop or []
    if len(words) > MAX_STOPS:
        raise invalid([(("stop",), f"List should have at most {MAX_STOPS} items after validation, not {len(words)}")])
    return stop_words(words, "stop")


def usage(endings: Sequence[Ending], n: int) -> dict[str, Any]:
    """The usage of all answers together; answers to the same prompt (`n` of them) count it once.

    Rates and times are those of the only answer, and unknown where there are several.
    """
    used = [ending.usage for ending in endings]
    prompts = used[::n]
    prompt, completion = sum(u.prompt_tokens for u in prompts), sum(u.completion_tokens for u in used)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(u.reasoning_tokens for u in used)},
        **timings(used),
    }


def timings(used: Sequence[Usage]) -> dict[str, float | None]:
    """When the answer came, and how fast."""
    only = used[0] if len(used) == 1 else Usage(0, 0)
    return {
        "time_to_first_token": only.ttft_seconds,
        "prompt_tokens_per_second": only.prompt_tokens_per_second,
        "generation_tokens_per_second": only.generation_tokens_per_second,
        "total_time": only.total_seconds,
    }


def figures(endings: Sequence[Ending]) -> dict[str, Any]:
    """The `x_mlx_dspark` block: of the only answer, or of each under `choices`."""
    blocks = [dict(ending.figures) for ending in endings]
    return blocks[0] if len(blocks) == 1 else {"choices": blocks}


def token_logprob(score: TokenScore) -> dict[str, Any]:
    """One entry of `logprobs.content`."""
    return {**_scored(score), "top_logprobs": [_scored(other) for other in score.top]}


def _scored(score: TokenScore) -> dict[str, Any]:
    return {
        "token": score.text,
        "logprob": score.logprob,
        "bytes": list(score.data) if score.data is not None else None,
    }


def finish_reason(ending: Ending) -> str:
    """In OpenAI's words."""
    return {"stop_sequence": "stop", "cancelled": "length"}.get(ending.reason, ending.reason)
