"""OpenAI completions: raw prompts, no template."""

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from dspark.errors import BadRequest
from dspark.server.dialects import openai
from dspark.server.dialects.asked import Asked
from dspark.server.dialects.choices import Choice, ChoicesReply
from dspark.server.dialects.reply import Frame
from dspark.server.dialects.wire import invalid
from dspark.server.order import Order
from dspark.server.parts import Content, Part, Reasoning, Scores

MAX_ANSWERS = 2048
TokenId = Annotated[int, Field(ge=0)]


def _kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "<str>"
    if not isinstance(value, list):
        return None
    if value and isinstance(value[0], str):
        return "<texts>"
    return "<token lists>" if value and isinstance(value[0], list) else "<tokens>"


Prompts = Annotated[
    Annotated[str, Tag("<str>")]
    | Annotated[list[str], Tag("<texts>"), Field(max_length=MAX_ANSWERS)]
    | Annotated[list[TokenId], Tag("<tokens>")]
    | Annotated[list[list[TokenId]], Tag("<token lists>"), Field(max_length=MAX_ANSWERS)],
    Discriminator(
        _kind,
        custom_error_type="prompt",
        custom_error_message="Input should be a valid string, or list of strings or token ids",
    ),
]


class Body(Asked):
    """`POST /v1/completions`."""

    prompt: Prompts
    stop: openai.StopField | None = None
    n: int | None = Field(None, gt=0, le=128)
    best_of: int | None = Field(None, gt=0)
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=20)
    stream_options: openai.StreamOptions | None = None


def parse(body: bytes) -> Order:
    """The order in a request's body.

    Raises:
        BadRequest, ValidationFailed: what the body asks cannot be done.
    """
    asked = Body.read(body)
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise BadRequest("best_of is not supported: ask for n answers and choose among them", "best_of")
    if asked.suffix:
        raise BadRequest("suffix is not supported: the model only continues a prompt", "suffix")
    if asked.echo and asked.logprobs is not None:
        raise BadRequest("echo with logprobs is not supported: the prompt's own are not computed", "echo")
    prompts = _prompts(asked.prompt)
    if len(prompts) * (asked.n or 1) > MAX_ANSWERS:
        raise BadRequest(f"n answers to each prompt make more than {MAX_ANSWERS}; ask for fewer", "n")
    return Order(
        model=asked.model,
        prompts=prompts,
        sampling=asked.wishes(asked.logprobs),
        max_tokens=asked.max_tokens,
        stop=openai.stop_strings(asked.stop),
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
        n=asked.n or 1,
        echo=bool(asked.echo),
        thinking=asked.thoughts(),
    )


def _prompts(prompt: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid([(("prompt",), "List should have at least 1 item after validation, not 0")])
    if isinstance(prompt[0], int):
        return (tuple(prompt),)
    return tuple(each if isinstance(each, str) else tuple(each) for each in prompt)


class Reply(ChoicesReply):
    """See `dspark.server.dialects.reply.Reply`. An echoed prompt is fed as the first content of its choice."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    empty: ClassVar = {"text": ""}

    def begin(self) -> list[Frame]:
        """Nothing: there is no role to tell."""
        return []

    def feed(self, part: Part, choice: int = 0) -> list[Frame]:
        """A chunk a piece of text, thinking or not; log-probabilities go with the next."""
        grown = self.choices[choice]
        match part:
            case Content(text) | Reasoning(text):
                grown.text.append(text)
                return [self.chunk(choice, {"text": text})]
            case Scores(tokens):
                grown.score(tokens)
        return []

    def message(self, choice: Choice) -> dict[str, Any]:
        return {"text": "".join(choice.text)}

    def logprobs(self, choice: Choice, start: int) -> dict[str, Any]:
        """The legacy form: parallel lists; `text_offset` counts characters of the answer."""
        scores = choice.scores[start:]
        return {
            "tokens": [score.text for score in scores],
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": [{other.text: other.logprob for other in score.top} for score in scores],
            "text_offset": choice.offsets[start:-1],
        }
