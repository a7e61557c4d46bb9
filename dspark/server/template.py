"""A model's chat template, and what it can render, found out by rendering with it."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from dspark.errors import BadRequest
from dspark.server.order import EFFORTS, Effort

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Turn = dict[str, Any]
_COMMON_EFFORTS: tuple[Effort, ...] = ("low", "medium", "high")
_UNKNOWN = "probedunknown"
_TOOL = {
    "type": "function",
    "function": {
        "name": "probedtool",
        "description": "probedtext",
        "parameters": {"type": "object", "properties": {"key": {"type": "string", "description": "probed"}}},
    },
}


@dataclass(frozen=True)
class Calls:
    """How past calls must be given: arguments as objects or as JSON text, ids of nine letters or as they are."""

    objects: bool
    short_ids: bool


@dataclass(frozen=True)
class Traits:
    """What kinds of turns a template renders, without raising and without losing any of them.

    The default is what every template does: user and assistant in turn.
    """

    system: bool = False
    system_anywhere: bool = False
    any_order: bool = False
    calls: Calls | None = None
    user_after_tool: bool = False


class Template:
    """Renders turns to text.

    `probed` properties render a few short conversations when they are first asked for.
    """

    def __init__(self, tokenizer: "TokenizerWrapper") -> None:
        self._tokenizer = tokenizer

    def render(self, turns: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] = (), **said: Any) -> str:
        """The prompt as text, up to where the answer begins. Raises whatever the template raises."""
        text = self._tokenizer.apply_chat_template(
            list(turns), tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **said
        )
        return str(text)

    def check(self, said: Mapping[str, Any]) -> None:
        """Refuse keyword arguments that are not the template's own.

        Raises:
            BadRequest: they would change what is rendered, or how.
        """
        own = inspect.signature(self._tokenizer._tokenizer.apply_chat_template).parameters
        for name in said:
            if name in own or name == "messages":
                raise BadRequest(f"chat_template_kwargs cannot set {name}; leave it out", "chat_template_kwargs")

    @cached_property
    def traits(self) -> Traits:
        """Probed."""
        a, b, c, d = (f"probed{letter}" for letter in "abcd")
        calls = self._calls()
        return Traits(
            system=self._keeps([_turn("system", a), _turn("user", b)], a, b),
            system_anywhere=self._keeps(
                [_turn("user", a), _turn("assistant", b), _turn("system", c), _turn("user", d)], a, c, d
            ),
            any_order=self._keeps([_turn("user", a), _turn("user", b)], a, b)
            and self._keeps(
                [_turn("user", a), _turn("assistant", b), _turn("assistant", c), _turn("user", d)], a, b, c, d
            )
            and self._keeps([_turn("assistant", a), _turn("user", b)], a, b),
            calls=calls,
            user_after_tool=calls is not None and self._keeps([*self._called(calls), _turn("user", d)], d),
        )

    @cached_property
    def takes_tools(self) -> bool:
        """Probed: whether it tells the model of its tools."""
        return "probedtool" in (self._try([_turn("user", "probed")], [_TOOL]) or "")

    @cached_property
    def switch(self) -> str | None:
        """Probed: the variable that turns thinking on and off."""
        for name in self._variables("think", first=("enable_thinking", "thinking")):
            on, off = self._asked(**{name: True}), self._asked(**{name: False})
            if "budget" not in name and on is not None and off is not None and on != off:
                return name
        return None

    @cached_property
    def thinks_unasked(self) -> bool | None:
        """Probed: whether thinking is on where nothing is said; None where it cannot be switched."""
        return self._asked() == self._asked(**{self.switch: True}) if self.switch else None

    @cached_property
    def budget(self) -> str | None:
        """The variable that tells the model how long it may think."""
        return next((name for name in self._variables("budget")), None)

    @cached_property
    def effort(self) -> tuple[str, tuple[Effort, ...]] | None:
        """Probed: the variable for how hard to think, and the values it knows, the least first."""
        for name in self._variables("effort", first=("reasoning_effort",)):
            if known := self._efforts(name):
                return name, known
        return None

    def _efforts(self, name: str) -> tuple[Effort, ...]:
        on = {self.switch: True} if self.switch else {}
        texts = {effort: self._asked(**on, **{name: effort}) for effort in EFFORTS}
        unknown = self._asked(**on, **{name: _UNKNOWN})
        if unknown is None:
            return tuple(effort for effort in EFFORTS if texts[effort] is not None)
        if _UNKNOWN in unknown:  # it repeats whatever it is given: take what models know, and what it mentions
            named = set(re.findall(r"""["'](\w+)["']""", self._source))
            return tuple(effort for effort in EFFORTS if effort in _COMMON_EFFORTS or effort in named)
        known = tuple(effort for effort in EFFORTS if texts[effort] not in (None, unknown))
        if not known:
            return ()
        # What else it is given it takes for its default, which is what `medium` means everywhere.
        return tuple(effort for effort in EFFORTS if effort in known or effort == "medium")

    def _calls(self) -> Calls | None:
        for objects, short_ids in ((True, False), (True, True), (False, False), (False, True)):
            calls = Calls(objects, short_ids)
            text = self._try(self._called(calls), [_TOOL]) or ""
            garbled = "{'key'" in text or '\\"key' in text
            if not garbled and all(word in text for word in ("probedtool", "probedvalue", "probedresult")):
                return calls
        return None

    @staticmethod
    def _called(calls: Calls) -> list[Turn]:
        arguments: Any = {"key": "probedvalue"} if calls.objects else '{"key": "probedvalue"}'
        id_ = "probedid0" if calls.short_ids else "call_probed_0"
        call = {"id": id_, "type": "function", "function": {"name": "probedtool", "arguments": arguments}}
        return [
            _turn("user", "probed"),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "probedresult", "tool_call_id": id_, "name": "probedtool"},
        ]

    def _keeps(self, turns: Sequence[Turn], *words: str) -> bool:
        text = self._try(turns) or ""
        return all(word in text for word in words)

    def _asked(self, **said: Any) -> str | None:
        return self._try([_turn("user", "probed")], **said)

    def _try(self, turns: Sequence[Turn], tools: Sequence[dict[str, Any]] = (), **said: Any) -> str | None:
        try:
            return self.render(turns, tools, **said)
        except Exception:  # templates are programs, and refuse in many ways
            return None

    def _variables(self, word: str, first: tuple[str, ...] = ()) -> list[str]:
        """Names in the template that contain `word`: what it takes is among them."""
        named = sorted(set(re.findall(rf"\b\w*{word}\w*\b", self._source)))
        return [*(name for name in first if name in named or not self._source), *(n for n in named if n not in first)]

    @property
    def _source(self) -> str:
        """The text of the template, of all if there are several; empty where it is a program of mlx-lm's."""
        source = self._tokenizer.chat_template
        return "\n".join(source.values()) if isinstance(source, dict) else source or ""


def _turn(role: Literal["system", "user", "assistant"], content: str) -> Turn:
    return {"role": role, "content": content}
