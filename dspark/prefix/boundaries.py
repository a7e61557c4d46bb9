"""Where a prompt will be rendered the same next time, found by rendering what may come next and comparing.

Chat templates end a prompt in ways that depend on the answer not being there yet (an opened thought, an empty one),
and render older answers otherwise than new ones. None of this is known here: only what two renderings share.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspark.sequences import common_prefix

Turn = Mapping[str, Any]
_ANSWERS = ("Yes.", "a list:")
_QUESTIONS = ("Why?", "1 + 1")


def boundaries(
    turns: Sequence[Turn],
    render: Callable[[list[Turn]], str],
    encode: Callable[[str], Sequence[int]],
    prompt: Sequence[int],
) -> tuple[int, ...]:
    """Lengths of the beginnings of `prompt` that later prompts are likely to share, ascending.

    `prompt` is `encode(render(turns))`. Tried are another conversation under the same system prompt and tools, one more
    exchange, and, where the last turn is a tool's, one more call. What the template does not render is left out.
    """
    system = [turn for turn in turns[:1] if turn.get("role") in ("system", "developer")]
    tried = [
        [[*system, _turn("user", question)] for question in _QUESTIONS],
        [
            [*turns, _turn("assistant", answer), _turn("user", question)]
            for answer, question in zip(_ANSWERS, _QUESTIONS, strict=True)
        ],
    ]
    if turns and turns[-1].get("role") == "tool":
        tried.append([[*turns, _turn("assistant", answer), turns[-1]] for answer in _ANSWERS])
    text = _rendered(render, list(turns))
    if text is None:
        return ()
    found = set()
    for others in tried:
        texts = [other for turns_ in others if (other := _rendered(render, turns_)) is not None]
        shared = min((common_prefix(text, other) for other in texts), default=0)
        # The cut may fall inside a token: only those that also come out of the shared text alone are whole.
        found.add(common_prefix(list(prompt), list(encode(text[:shared]))) if shared else 0)
    # The last token is always read: its logits choose the first of the answer.
    return tuple(sorted({min(length, len(prompt) - 1) for length in found if length > 0}))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _rendered(render: Callable[[list[Turn]], str], turns: list[Turn]) -> str | None:
    try:
        return render(turns)
    except Exception:  # templates are programs of the checkpoint's
        return None
