"""How often sampled proposals are accepted: by our rule, and by the accept / residual rule with two kinds of proposals.

python tests/benchmarks/coupling.py --json results/coupling.json

Texts are sampled from the demo target, and a draft of the shipped head is weighed at each of their tokens. The chance
that a proposal is accepted is computed from the two laws there, p of the target and q of the drafter, given the text so
far; no proposal is drawn. All of a draft up to place k is accepted with the mean over the texts, with tokens x, of

    coupled   the product of P(q's token is x | p's token is x), both drawn with the same noise, as `dspark` does
    sampled   the product of min(1, q(x) / p(x)): proposals drawn from q, accepted by the residual rule
    greedy    the product of [x is q's likeliest token]: that one proposed, accepted by its p in either rule

Prints a table of the chance of acceptance at each place, all places before it accepted. The column `decoded` counts
what happened while the texts were written by our rule; its drafts begin where rounds did, not at every token.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from dspark.decoding.request import Request, Sampling, SpeculationOptions
from dspark.drafters.block import BlockDrafter
from dspark.engine import Engine, LoadOptions
from dspark.machine import stamp
from dspark.targets.target import Target

RULES = ("coupled", "sampled", "greedy")
PROMPTS = Path(__file__).parents[1] / "data" / "reference-prompts.jsonl"

Law = npt.NDArray[np.float64]


def coupled_agreement(p: Law, q: Law) -> Law:
    """For each token, the chance that it is drawn from both laws [V] at once when both draws share Gumbel noise.

    That is 1 / sum over j of max(p_j / p_i, q_j / q_i); sorted by p / q, the sum is a sum of p and one of q.
    """
    live = (p > 0) & (q > 0)
    order = np.argsort(-np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0))
    above, below = np.empty_like(p), np.empty_like(q)
    above[order], below[order] = np.cumsum(p[order]), q.sum() - np.cumsum(q[order])
    agreement = np.zeros_like(p)
    agreement[live] = 1.0 / (above[live] / p[live] + below[live] / q[live])
    return agreement


def chances(p: Law, q: Law, token: int) -> list[tuple[float, float]]:
    """By rule: the chance that a proposal is accepted, and the same given that the text goes on with `token`."""
    both, likeliest = coupled_agreement(p, q), int(q.argmax())
    return [
        (float(both.sum()), float(both[token] / p[token])),
        (float(np.minimum(p, q).sum()), float(min(1.0, q[token] / p[token]))),
        (float(p[likeliest]), float(token == likeliest)),
    ]


def weigh(target: Target, drafter: BlockDrafter, prompt: list[int], text: list[int], temperature: float) -> Law:
    """[anchors, rules, block, 2]: chances that place k of a draft is tested, and that it is accepted.

    The drafts are those at the tokens of `text` with a whole block behind them.
    """
    ids, block = [*prompt, *text], drafter.block
    target.tap(drafter.taps)
    logits, rows = target.forward(mx.array([ids], dtype=mx.int32), target.new_cache())
    target.tap(())
    assert rows is not None
    support = np.arange(target.vocabulary) if drafter.d2t is None else np.array(drafter.d2t)
    column = {int(token): index for index, token in enumerate(support)}
    context, held, drafts = drafter.new_context(), 0, []
    for anchor in range(len(prompt), len(ids) - block):
        context.append(rows[:, held:anchor])
        held = anchor
        newest, ahead = mx.array([ids[anchor]], dtype=mx.int32), ids[anchor + 1 : anchor + 1 + block]
        # A token that the drafter cannot propose ends every chain, so what is put in its place does not matter.
        forced = mx.array([column.get(token, 0) for token in ahead])
        steps = drafter.steps(
            drafter.hidden(context, newest)[0],
            newest,
            lambda _, step, __, forced=forced: forced[step : step + 1],
        )
        p = law(logits[0, anchor : anchor + block], temperature)
        q = np.zeros_like(p)
        q[:, support] = law(steps.logits, temperature)
        drafts.append(survival(map(chances, p, q, ahead)))
    return np.array(drafts)


def survival(places: Iterable[list[tuple[float, float]]]) -> list[list[tuple[float, float]]]:
    """By rule and place: the chances that the place is tested, and that it is accepted."""
    rules = []
    for rule in zip(*places, strict=True):
        tested, chain = 1.0, []
        for accepted, goes_on in rule:
            chain.append((tested, tested * accepted))
            tested *= goes_on
        rules.append(chain)
    return rules


def law(logits: mx.array, temperature: float) -> Law:
    """The laws [n, K] of rows of logits."""
    rows = np.array(logits.astype(mx.float32), dtype=np.float64) / temperature
    weights = np.exp(rows - rows.max(axis=-1, keepdims=True))
    out: Law = weights / weights.sum(axis=-1, keepdims=True)
    return out


def measure(engine: Engine, temperature: float, prompts: list[str], seeds: range, tokens: int) -> dict[str, Any]:
    """Both kinds of figures over one text a prompt and seed, at one temperature."""
    pair = engine._pair
    assert pair is not None and isinstance(pair.drafter, BlockDrafter)
    block = pair.drafter.block
    offered, accepted = np.zeros(block, dtype=int), np.zeros(block, dtype=int)
    texts = []
    for text in prompts:
        prompt = engine.encode_chat(text)
        for seed in seeds:
            request = Request(
                prompt,
                max_tokens=tokens + block,
                speculation=SpeculationOptions(engine.loaded.modes[-1], cap=block, lookup=False),
                sampling=Sampling(temperature=temperature, seed=seed),
            )
            *_, last = engine.generate(request)
            offered[: len(last.statistics.offered_at)] += last.statistics.offered_at
            accepted[: len(last.statistics.accepted_at)] += last.statistics.accepted_at
            if len(last.tokens) > block:
                texts.append(weigh(pair.target, pair.drafter, prompt, list(last.tokens), temperature))
    return {
        "temperature": temperature,
        "texts": len(texts),
        "drafts": sum(len(drafts) for drafts in texts),
        "rules": summary(texts),
        "decoded": {"offered_at": offered.tolist(), "accepted_at": accepted.tolist()},
    }


def summary(texts: list[Law]) -> dict[str, Any]:
    """By rule: acceptance at each place, tokens accepted a draft, and how many more than by `coupled` (± over texts).

    `tested_at` is the share of drafts that get as far as a place; None is the acceptance at one that none did.
    """
    tested, accepted = np.moveaxis(np.concatenate(texts).mean(axis=0), -1, 0)
    by_text = np.array([drafts[..., 1].sum(axis=-1).mean(axis=0) for drafts in texts])
    out = {}
    for i, rule in enumerate(RULES):
        gains = [float(gain) for gain in by_text[:, i] - by_text[:, 0]]
        out[rule] = {
            "tested_at": [round(float(share), 4) for share in tested[i]],
            "acceptance_at": [
                round(float(a / t), 4) if t else None for a, t in zip(accepted[i], tested[i], strict=True)
            ],
            "accepted_a_draft": round(float(accepted[i].sum()), 4),
            "over_coupled": round(mean(gains), 4),
            "over_coupled_error": round(stdev(gains) / len(gains) ** 0.5, 4),
        }
    return out


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line a temperature and place, and one for the whole draft."""
    lines = ["| temperature | place | coupled | sampled | greedy | decoded |", "|---|---|" + "---:|" * 4]
    for row in rows:
        rules, decoded = row["rules"], row["decoded"]
        counts = list(zip(decoded["accepted_at"], decoded["offered_at"], strict=True))
        for place, (accepted, offered) in enumerate(counts):
            chances_here = [rules[rule]["acceptance_at"][place] for rule in RULES]
            cells = ["" if chance is None else f"{chance:.3f}" for chance in chances_here]
            cells.append(f"{accepted / offered:.3f} of {offered}" if offered else "")
            lines.append(f"| {row['temperature']} | {place + 1} | " + " | ".join(cells) + " |")
        whole = [f"{rules[rule]['accepted_a_draft']:.3f}" for rule in RULES]
        whole.append(f"{sum(decoded['accepted_at']) / max(decoded['offered_at'][0], 1):.3f}")
        lines.append(f"| {row['temperature']} | accepted a draft | " + " | ".join(whole) + " |")
        over = [f"{rules[rule]['over_coupled']:+.3f} ± {rules[rule]['over_coupled_error']:.3f}" for rule in RULES[1:]]
        lines.append(f"| {row['temperature']} | over coupled | | " + " | ".join(over) + " | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.8, 1.0])
    parser.add_argument("--seeds", type=int, default=3, help="texts a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="drafts a text, at most")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    args = parser.parse_args()
    at = stamp()
    engine = Engine()
    engine.load(LoadOptions(precision="fp32"))
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    seeds = range(1, 1 + args.seeds)
    rows = [measure(engine, temperature, prompts, seeds, args.tokens) for temperature in args.temperatures]
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps({"stamp": at, "pair": "demo", "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
