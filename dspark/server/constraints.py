"""What an order asks of the answer's form, as a constraint that the decoder enforces."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dspark.errors import BadRequest
from dspark.server.order import Order, Thinking, Tool

if TYPE_CHECKING:
    from dspark.decoding.constraint import ConstraintFactory


def constraint_of(order: Order, thinking: Thinking, *, opens_thinking: bool, raw: bool) -> "ConstraintFactory | None":
    """None where every token is free. `raw` prompts know neither thoughts nor calls.

    Raises:
        BadRequest: formats that cannot be enforced together. ConstraintError, ExtraMissing: one that cannot be at all.
    """
    wanted = _form(order)
    budget = None if raw else thinking.budget
    if wanted is None and budget is None:
        return None
    if raw:
        return wanted
    from dspark.decoding.thinking import Thinking as Budgeted

    return Budgeted(budget, opens_thinking, wanted)


def _form(order: Order) -> "ConstraintFactory | None":
    """What the answer proper must be: JSON, calls, or nothing in particular."""
    calls = bool(order.offered) and (order.tool_choice.mode == "required" or any(t.strict for t in order.offered))
    if order.response_format is not None:
        if order.offered:
            raise BadRequest(
                "response_format and tools that may be called cannot be enforced together: leave one of them out, or "
                "set tool_choice to none",
                "response_format",
            )
        from dspark.decoding import grammar

        schema = order.response_format.schema
        return grammar.for_json_object() if schema is None else grammar.for_json_schema(dict(schema))
    if not calls:
        return None
    from dspark.decoding.toolgrammar import ToolCalls

    return ToolCalls(
        [_described(tool) for tool in order.offered],
        required=order.tool_choice.mode == "required",
        only=order.tool_choice.name,
        parallel=order.parallel_tool_calls,
    )


def _described(tool: Tool) -> Mapping[str, Any]:
    told = tool.as_function()
    return {**told, "function": {**told["function"], "strict": tool.strict}}
