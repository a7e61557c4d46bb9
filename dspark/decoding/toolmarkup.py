"""How model families write a call of a tool, as mlx-lm's parser of the same name reads it back."""

from dataclasses import dataclass
from typing import Literal

from mlx_lm.tokenizer_utils import TokenizerWrapper

from dspark.errors import ConstraintError

# How an argument stands: `json` as JSON; `python` as JSON that is a Python literal too; `raw` with strings bare, up to
# the mark behind them; `quoted` with strings between quotes of the family's own, and nothing nested.
Values = Literal["json", "python", "raw", "quoted"]


@dataclass(frozen=True)
class Markup:
    """The text around the parts of a call: `NAME` is the tool's name, `KEY` an argument's, `INDEX` any number.

    `before` and `after` are around the arguments of one call, `section` around all calls, `between` between two.
    Without `argument` the arguments are one JSON object; with it, each has these marks around its value.
    """

    before: str
    after: str
    section: tuple[str, str] = ("", "")
    between: str = ""
    argument: tuple[str, str] | None = None
    separator: str = ""
    values: Values = "json"
    quotes: str = ""


_JSON_CALL = '{"name": "NAME", "arguments": '
_MARKUPS = {
    "json_tools": Markup(f"<tool_call>\n{_JSON_CALL}", "}\n</tool_call>", between="\n"),
    "longcat": Markup(f"<longcat_tool_call>{_JSON_CALL}", "}</longcat_tool_call>"),
    "kimi_k2": Markup(
        "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "kimi_k3": Markup(
        '<|open|>call tool="NAME" index="INDEX"<|sep|><|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|><|close|>call<|sep|>",
        section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    ),
    "qwen3_coder": Markup(
        "<tool_call>\n<function=NAME>\n",
        "</function>\n</tool_call>",
        between="\n",
        argument=("<parameter=KEY>\n", "\n</parameter>\n"),
        values="raw",
    ),
    "glm47": Markup(
        "<tool_call>NAME",
        "</tool_call>",
        argument=("<arg_key>KEY</arg_key><arg_value>", "</arg_value>"),
        values="raw",
    ),
    "minimax_m2": Markup(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        section=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        argument=('<parameter name="KEY">', "</parameter>\n"),
        values="raw",
    ),
    "minicpm5": Markup(
        '<function name="NAME">', "</function>", argument=('<param name="KEY">', "</param>"), values="raw"
    ),
    "muse_spark": Markup(
        '<atem:invoke name="NAME">\n',
        "</atem:invoke>\n",
        section=("<atem:function_calls>\n", "</atem:function_calls>"),
        argument=('<atem:parameter name="KEY">', "</atem:parameter>\n"),
    ),
    "pythonic": Markup(
        "NAME(",
        ")",
        section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        between=", ",
        argument=("KEY=", ""),
        separator=", ",
        values="python",
    ),
    "gemma4": Markup(
        "<|tool_call>call:NAME{",
        "}<tool_call|>",
        argument=("KEY:", ""),
        separator=",",
        values="quoted",
        quotes='<|"|>',
    ),
    "function_gemma": Markup(
        "<start_function_call>call:NAME{",
        "}<end_function_call>",
        argument=("KEY:", ""),
        separator=",",
        values="quoted",
        quotes="<escape>",
    ),
}
_MISTRAL_LIST = Markup(_JSON_CALL, "}", section=("[TOOL_CALLS][", "]"), between=", ")
_MISTRAL_HEADER = Markup("[TOOL_CALLS]NAME[ARGS]", "")


def markup_of(tokenizer: TokenizerWrapper) -> Markup:
    """The markup that the model's tool parser reads.

    Raises:
        ConstraintError: the model has none, or one that is not known here.
    """
    parser = tokenizer.tool_parser
    if parser is None:
        raise ConstraintError(
            "this model has no markup for tool calls, so none can be required; use tool_choice auto, or another model"
        )
    family = parser.__module__.rpartition(".")[2]
    if family == "mistral":
        return _MISTRAL_HEADER if "[ARGS]" in tokenizer.get_vocab() else _MISTRAL_LIST
    if family not in _MARKUPS:
        raise ConstraintError(f"tool calls in the markup {family} cannot be enforced; use tool_choice auto")
    return _MARKUPS[family]
