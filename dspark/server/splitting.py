"""From a model's text to the parts of an answer. However the text is cut into pieces, the parts say the same."""

import uuid
from collections.abc import Callable, Sequence

from dspark.decoding.events import FinishReason
from dspark.server.markup import Markup, State, first, unsettled
from dspark.server.order import Tool
from dspark.server.parts import Content, Part, Reason, Reasoning, ToolCall
from dspark.server.toolcalls import MalformedCall, ToolFormat


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Splitter:
    """Splits one answer: `feed` it the pieces of the text, then `finish` it.

    Text is passed on as soon as it cannot be markup. A call is held until it ends, and passed on as text if it is none
    of a declared tool. A marker inside a code span is text. Line breaks between a thought and its markers belong to
    the markers, as do blanks between markers. A call inside a thought counts only where nothing follows it: that is a
    model that forgot to end its thought, and not one that considers a call.
    """

    def __init__(
        self,
        markup: Markup,
        tools: Sequence[Tool] = (),
        *,
        opened: bool = False,
        parallel: bool = True,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self._markup = markup
        self._tools = tools
        self._parallel = parallel
        self._new_id = new_id
        self._state: State = "reasoning" if opened else markup.start
        self._origin: State = self._state  # what the open call interrupts
        self._buffer = ""  # text that is not settled yet
        self._fed = 0
        self._held = ""  # settled blanks, of which it is not known yet what they stand beside
        self._trim = opened  # line breaks that come next belong to the marker of a thought
        self._marked = opened  # some marker was met
        self._in_span = False  # inside a code span of the current line
        self._call: list[str] = []  # the settled text of the open call
        self._drafts: list[tuple[str, list[tuple[str, str]]]] = []  # text and calls at the end of a thought
        self._thought_end = 0
        self._parts: list[Part] = []
        self._last: Part | None = None
        self._calls = 0
        self._cut = False
        self._reason: Reason | None = None
        self._reasoned = 0

    @property
    def reason(self) -> Reason | None:
        """How the answer ended, once it is finished: as the decoder said, or with calls."""
        return self._reason

    @property
    def reasoned(self) -> int:
        """Characters of the text up to the end of its last thought."""
        return self._reasoned

    def feed(self, text: str) -> list[Part]:
        """The parts that this piece of text completes."""
        self._buffer += text
        self._fed += len(text)
        self._run(final=False)
        return self._taken()

    def finish(self, reason: FinishReason) -> list[Part]:
        """The parts that were held, now that the answer ended for `reason`."""
        self._run(final=True)
        while self._state == "call":
            self._end_call(reason)
            self._run(final=True)
        if self._state == "drafted":
            self._reasoned = self._thought_end
            for _, calls in self._drafts:
                self._emit_calls(calls)
        elif self._state == "reasoning":
            self._reasoned = self._fed
            self._emit(Reasoning(self._held))
        elif self._state == "fresh" and not self._marked:
            self._emit(Content(self._held))
        finished = reason == "stop" or (reason == "length" and isinstance(self._last, ToolCall) and not self._cut)
        self._reason = "tool_calls" if self._calls and finished else reason
        return self._taken()

    def _run(self, *, final: bool) -> None:
        steps = {"call": self._step_call, "fresh": self._step_between, "drafted": self._step_between}
        while steps.get(self._state, self._step_text)(final):
            pass

    def _step_text(self, final: bool) -> bool:
        """Say the text up to the next marker, and pass that; False when more text is needed."""
        edges = self._markup.edges[self._state]
        hit = first(self._buffer, edges)
        if hit is None:
            keep = 0 if final else unsettled(self._buffer, tuple(marker for marker, _ in edges))
            self._say(self._take(len(self._buffer) - keep))
            return False
        at, (marker, target) = hit
        self._say(self._take(at))
        if self._in_span:
            after = self._buffer[len(marker) : len(marker) + 1]
            if target != "call" and not after and not final:
                return False
            if target == "call" or after == "`":  # all else ends only where it is not quoted as a whole
                self._say(self._take(len(marker)))
                return True
        self._pass(marker, target)
        return True

    def _step_between(self, final: bool) -> bool:
        """Between markers: hold blanks until it is known whether a marker or text follows."""
        text = self._buffer.lstrip()
        self._held += self._take(len(self._buffer) - len(text))
        if not text:
            return False
        edges = self._markup.edges[self._state]
        for marker, target in edges:
            if text.startswith(marker):
                self._pass(marker, target)
                return True
        if not final and any(marker.startswith(text) for marker, _ in edges):
            return False
        if self._state == "drafted":
            self._think_on("")
        else:
            self._speak("")
        return True

    def _step_call(self, final: bool) -> bool:
        """Collect the open call up to its end."""
        tools = self._format
        at = self._buffer.find(tools.end) if tools.end else -1
        if at < 0:
            self._call.append(self._take(len(self._buffer) - unsettled(self._buffer, (tools.end,))))
            return False
        self._call.append(self._take(at))
        self._take(len(tools.end))
        text = "".join(self._call)
        if tools.at_rest(text):
            self._settle(text, tools.end)
        else:
            self._call = [text, tools.end]
        return True

    def _end_call(self, reason: FinishReason) -> None:
        """Settle the call that is open at the end of the answer."""
        tools = self._format
        text = "".join(self._call)
        begun = text + self._buffer
        complete = tools.at_rest(text) if reason == "stop" else tools.whole(text)
        calls = self._read(text) if complete else None
        self._buffer = ""
        if calls is not None:
            self._accept(calls, tools.start + begun)
        elif tools.end and (at := begun.find(tools.end)) >= 0:
            # What looked like a value of it was a malformed call, and text.
            self._buffer = begun[at + len(tools.end) :]
            self._refuse(tools.start + begun[:at] + tools.end)
        elif reason == "stop":
            self._refuse(tools.start + begun)
        else:
            self._state, self._cut = self._origin, True

    def _pass(self, marker: str, target: State) -> None:
        """Go past a marker, into the state behind it."""
        if target == "call":
            if self._state == "reasoning":
                self._thought_end = self._fed - len(self._buffer)
            self._origin, self._call = self._state, []
        else:
            if self._state == "drafted":
                self._think_on("")
            if self._state == "reasoning":
                self._reasoned = self._fed - len(self._buffer) + len(marker)
            self._trim = self._state in ("reasoning", "fresh") or target == "reasoning"
            self._held = ""
        self._take(len(marker))
        self._state, self._marked, self._in_span = target, True, False

    def _settle(self, text: str, end: str) -> None:
        """Take the text of the open call for a call, or else for text."""
        raw = self._format.start + text + end
        calls = self._read(text)
        if calls is None:
            self._refuse(raw)
        else:
            self._accept(calls, raw)

    def _read(self, text: str) -> list[tuple[str, str]] | None:
        try:
            return self._format.calls(text, self._tools)
        except MalformedCall:
            return None

    def _accept(self, calls: list[tuple[str, str]], raw: str) -> None:
        """The open call is one, or several."""
        if self._thinking:
            self._drafts.append((self._held + raw, calls))
            self._state = "drafted"
        else:
            self._emit_calls(calls)
            self._state, self._trim = "fresh", False
        self._held = ""

    def _refuse(self, raw: str) -> None:
        """The open call is none."""
        if self._thinking:
            self._think_on(raw)
        else:
            self._speak(raw)

    def _think_on(self, text: str) -> None:
        """Go on with the thought: its drafts, the blanks after them, and `text` belong to it."""
        text = "".join(draft for draft, _ in self._drafts) + self._held + text
        self._drafts, self._held, self._state = [], "", "reasoning"
        self._say(text)

    def _speak(self, text: str) -> None:
        """Go on with, or begin, the answer proper: the blanks that were held, and `text`."""
        held = self._held.lstrip("\n") if self._trim else self._held
        self._held, self._trim, self._state = "", False, "content"
        self._say(held + text)

    def _say(self, text: str) -> None:
        """Pass on text of the current state."""
        if self._state == "reasoning":
            if self._trim:
                text = text.lstrip("\n")
                self._trim = not text
            text = self._held + text
            body = text.rstrip("\n")
            self._held = text[len(body) :]
            self._emit(Reasoning(body))
        elif self._state == "content":
            self._emit(Content(text))
        *lines, line = text.split("\n")
        self._in_span = (line.count("`") + (self._in_span and not lines)) % 2 == 1

    def _emit(self, part: Reasoning | Content) -> None:
        if not part.text:
            return
        if self._parts and type(self._parts[-1]) is type(part):
            part = type(part)(self._parts.pop().text + part.text)  # type: ignore[union-attr]
        self._parts.append(part)
        self._last = part

    def _emit_calls(self, calls: Sequence[tuple[str, str]]) -> None:
        for name, arguments in calls:
            if self._parallel or not self._calls:
                self._calls += 1
                self._last = ToolCall(self._new_id(), name, arguments)
                self._parts.append(self._last)

    def _take(self, count: int) -> str:
        """Settle `count` characters of the buffer."""
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    @property
    def _thinking(self) -> bool:
        return self._origin in ("reasoning", "drafted")

    @property
    def _format(self) -> ToolFormat:
        assert self._markup.tools is not None
        return self._markup.tools
