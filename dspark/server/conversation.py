"""From an order to the tokens of its prompt, through the chat template of the model that answers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from dspark.errors import BadRequest, PromptError
from dspark.server.folding import fold
from dspark.server.markup import Markup
from dspark.server.order import EFFORTS, NO_WISHES, Effort, Order, Thinking, Tool
from dspark.server.splitting import Splitter
from dspark.server.template import Template, Traits, Turn
from dspark.server.toolcalls import ToolFormat

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

# A text of more characters than this for each token of the window is counted in pieces first: while it is turned into
# tokens it takes a hundred times its size, which the largest bodies that are accepted would not leave to others.
_CHARACTERS_A_TOKEN = 16
_PIECE_CHARACTERS = 1 << 16

_log = logging.getLogger(__name__)
# Families that go on to invent the result of a call unless they are stopped where it would begin.
_RESULT_MARKERS = {"gemma4": "<|tool_response>", "function_gemma": "<start_function_response>"}


@dataclass(frozen=True)
class Rendered:
    """`text` is `render(turns)`."""

    turns: list[Turn]
    render: Callable[[Sequence[Mapping[str, Any]]], str]
    text: str


@dataclass(frozen=True)
class Prompt:
    """What the model reads.

    `opens_thinking` says that it ends inside a thought, `stop` holds the strings that end the answer: the client's,
    and markers of the family's. `raw` prompts went through no template, and nothing in their answers is markup.
    """

    ids: tuple[int, ...]
    text: str
    opens_thinking: bool = False
    stop: tuple[str, ...] = ()
    raw: bool = False


class Conversation:
    """What is said to the loaded model, and how its answers are to be read.

    `defaults` hold where a client says nothing about thinking. What is much longer than `window` tokens is refused
    before all of it is turned into tokens. Safe for use from several threads at once.
    """

    def __init__(
        self, tokenizer: "TokenizerWrapper", defaults: Thinking = NO_WISHES, window: int | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._defaults = defaults
        self._window = window
        self._template = Template(tokenizer)

    @property
    def template(self) -> Template:
        """The chat template, and what it can render."""
        return self._template

    def probe(self) -> None:
        """Find out now what the template can render, and not with the first request."""
        if self._has_template:
            _ = (self._template.traits, self._template.switch, self._template.effort, self._template.budget)
        _ = (self._calling, self._plain, self.notes)

    @cached_property
    def tools_native(self) -> bool:
        """Whether tools go through the template; otherwise the model is told of them in words."""
        return ToolFormat.of(self._tokenizer) is not None and self._has_template and self._template.takes_tools

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How the model is expected to write calls."""
        native = ToolFormat.of(self._tokenizer) if self.tools_native else None
        return native or ToolFormat.plain()

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a user should know about the model's template."""
        notes = []
        if not self._has_template:
            notes.append("the model has no chat template: it reads what was said as plain text")
        elif not self.tools_native:
            notes.append("the chat template knows no tools: the model is told of them in words, and may not call them")
        return tuple(notes)

    def prompts(self, order: Order) -> list[Prompt]:
        """One prompt for a chat, or one for each raw prompt of the order.

        Raises:
            BadRequest, PromptError: there is nothing to say, the template cannot say it, or it is much too long.
        """
        if order.prompts:
            return [self._raw(prompt, order) for prompt in order.prompts]
        text, opens = self._said(order)
        self._check_length(text)
        ids = self._ids(text)
        marker = _RESULT_MARKERS.get(self.tool_format.family) if order.offered else None
        return [Prompt(tuple(ids), text, opens, (*order.stop, marker) if marker else order.stop)]

    def boundaries(self, order: Order, prompt: Prompt) -> tuple[int, ...]:
        """How many first tokens of `prompt` later prompts are likely to share, see `dspark.prefix.boundaries`.

        `prompt` is what `prompts` made of the same order.
        """
        if prompt.raw:
            return ()
        from dspark.prefix.boundaries import boundaries

        found = self._rendered(order, order.thinking.over(self._defaults))
        return boundaries(found.turns, found.render, self._encode, prompt.ids)

    def count_tokens(self, order: Order) -> int:
        """How long the prompt of the same request would be, also where it is too long. Raises as `prompts`."""
        text, _ = self._said(order)
        return self._too_many(text) or len(self._ids(text))

    def splitter(self, order: Order, prompt: Prompt) -> Splitter:
        """A fresh splitter for one answer to `prompt`."""
        if prompt.raw:
            return Splitter(Markup.none())
        markup = self._calling if order.offered else self._plain
        return Splitter(markup, order.offered, opened=prompt.opens_thinking, parallel=order.parallel_tool_calls)

    @cached_property
    def _calling(self) -> Markup:
        return Markup.of(self._tokenizer, self.tool_format)

    @cached_property
    def _plain(self) -> Markup:
        return Markup.of(self._tokenizer, None)

    def _said(self, order: Order) -> tuple[str, bool]:
        """The text of a chat as the model reads it, and whether it ends inside a thought."""
        if not order.messages:
            raise BadRequest("there is no message to answer; give at least one with text", "messages")
        thinking = order.thinking.over(self._defaults)
        text = self._rendered(order, thinking).text
        opens = self._opens(text)
        if opens and thinking.enabled is False:
            text, opens = f"{text.rstrip()}\n\n{self._tokenizer.think_end}\n\n", False
        return text, opens

    def _ids(self, text: str) -> list[int]:
        ids = self._encode(text)
        if not ids:
            raise PromptError("the prompt is empty after tokenization; give it some text")
        return ids

    def _check_length(self, text: str) -> None:
        tokens = self._too_many(text)
        if tokens is not None and self._window is not None:
            raise too_long(tokens, self._window)

    def _too_many(self, text: str) -> int | None:
        """About how many tokens a text has that is much too long for the window; None of one that may not be."""
        if self._window is None or len(text) <= self._window * _CHARACTERS_A_TOKEN:
            return None
        tokens = self._counted(text)
        return tokens if tokens >= self._window else None

    def _counted(self, text: str) -> int:
        """The tokens of a long text, a few more where its pieces meet."""
        pieces = range(0, len(text), _PIECE_CHARACTERS)
        return sum(
            len(self._tokenizer.encode(text[at : at + _PIECE_CHARACTERS], add_special_tokens=False)) for at in pieces
        )

    def _raw(self, prompt: str | tuple[int, ...], order: Order) -> Prompt:
        if isinstance(prompt, str):
            self._check_length(prompt)
        elif self._window is not None and len(prompt) >= self._window:
            raise too_long(len(prompt), self._window)
        ids = tuple(self._tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
        if not ids:
            raise PromptError("the prompt is empty; give it some text or tokens")
        if not all(0 <= token < len(self._tokenizer) for token in ids):
            raise BadRequest("prompt holds ids outside the vocabulary; encode it with this model's tokenizer", "prompt")
        text = prompt if isinstance(prompt, str) else str(self._tokenizer.decode(list(ids)))
        return Prompt(ids, text, stop=order.stop, raw=True)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=not self._has_template))

    def _rendered(self, order: Order, thinking: Thinking) -> Rendered:
        tools = order.offered
        if not self._has_template:
            turns = fold(order.messages, Traits(), tools)
            return Rendered(turns, _joined, _joined(turns))
        self._template.check(order.template_kwargs)
        said = {**order.template_kwargs, **self._thinking(thinking)}
        native = [tool.as_function() for tool in tools] if self.tools_native else []
        described: tuple[Tool, ...] = () if self.tools_native else tools
        traits = self._template.traits
        if not self.tools_native:
            traits = replace(traits, calls=None)  # one way to write calls, and not the template's

        def render(turns: Sequence[Mapping[str, Any]]) -> str:
            return self._template.render(turns, native, **said)

        try:
            turns = fold(order.messages, traits, described)
            return Rendered(turns, render, render(turns))
        except Exception as error:  # templates are programs, and refuse in many ways
            _log.info("the chat template refuses the conversation as it is, and gets it folded: %s", error)
        try:
            turns = fold(order.messages, Traits(), described)
            return Rendered(turns, render, render(turns))
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise PromptError(f"the chat template cannot render this conversation: {lines[0]}") from error

    def _thinking(self, thinking: Thinking) -> dict[str, Any]:
        """The template's variables for these wishes."""
        template = self._template
        said: dict[str, Any] = {}
        if thinking.enabled is not None and template.switch is not None:
            said[template.switch] = thinking.enabled
        if thinking.enabled is not False:
            if thinking.effort is not None and template.effort is not None:
                name, known = template.effort
                said[name] = nearest(thinking.effort, known)
            if thinking.budget is not None and template.budget is not None:
                said[template.budget] = thinking.budget
        return said

    def _opens(self, text: str) -> bool:
        return bool(self._tokenizer.think_start) and text.rstrip().endswith(self._tokenizer.think_start)

    @property
    def _has_template(self) -> bool:
        return bool(self._tokenizer.has_chat_template)


def _joined(turns: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(turn["content"] for turn in turns)


def nearest(effort: Effort, known: tuple[Effort, ...]) -> Effort:
    """The known effort that comes closest, the lesser of two."""
    wanted = EFFORTS.index(effort)
    return min(known, key=lambda each: (abs(EFFORTS.index(each) - wanted), EFFORTS.index(each)))


def answer_tokens(prompt_tokens: int, window: int, *limits: int | None) -> int:
    """How many tokens an answer may have: the smallest limit that is given, and no more than the window leaves.

    Raises:
        PromptError: the window leaves none.
    """
    if prompt_tokens >= window:
        raise too_long(prompt_tokens, window)
    return min(window - prompt_tokens, *(limit for limit in limits if limit is not None))


def too_long(prompt_tokens: int, window: int) -> PromptError:
    """The refusal of a prompt that leaves no room for an answer."""
    error = PromptError(f"prompt is too long: {prompt_tokens} tokens > {window - 1} maximum")
    error.code = "context_length_exceeded"
    return error
