"""Columns of the recipe, stress and capacity tables: heading, meaning, text of a row, sort key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpfa.eval.report.numbers import fixed, small


@dataclass(frozen=True)
class Column:
    """`text` renders a row's cell; `key` orders rows (None: not a number); a divergence is shaded by its size."""

    heading: str
    meaning: str
    text: Callable[[dict], str]
    key: Callable[[dict], float] | None = None
    is_divergence: bool = False


def _number(heading: str, meaning: str, field: str, render: Callable[[float], str]) -> Column:
    return Column(heading, meaning, lambda row: render(row[field]), lambda row: row[field])


def _divergence(heading: str, meaning: str, field: str) -> Column:
    return Column(heading, meaning, lambda row: small(row[field]), lambda row: row[field], is_divergence=True)


def _counters(row: dict) -> str:
    c = row["counters"]
    return f"{c['saturated']}/{c['flushed']}/{c['nonfinite']}"


RECIPE_COLUMNS = (
    Column("recipe", "name, then fields that differ from the named recipe", lambda row: row["recipe"]),
    _number(
        "B/token",
        "packed bytes of K, V, scales and extra terms per token, all layers",
        "kv_bytes_per_token",
        lambda v: fixed(v, 0),
    ),
    _number(
        "in use",
        "memory in use at the end per token: whole pages, tokens still in 16 bits, means",
        "kv_bytes_in_use_per_token",
        lambda v: fixed(v, 0),
    ),
    _number("x bf16", "how many times smaller than a 16-bit cache", "compression_vs_bf16", fixed),
    _number("ppl", "perplexity over both phases", "ppl", fixed),
    _number("ppl prefill", "perplexity of the prefilled tokens", "ppl_prefill", fixed),
    _number("ppl decode", "perplexity of the tokens decoded one by one", "ppl_decode", fixed),
    _divergence("KL mean", "KL(reference || recipe) per token, nats", "kl_mean"),
    _divergence("KL decode", "the same over the tokens decoded one by one", "kl_decode"),
    _divergence("KL p99", "99th percentile of the KL over tokens", "kl_p99"),
    _number(
        "top-1 %",
        "tokens with the same most likely next token as the reference",
        "top1_agreement",
        lambda v: fixed(100 * v),
    ),
    Column(
        "worst layer",
        "largest relative L2 error of a layer's attention output, and which layer",
        lambda row: f"{small(row['worst_layer_error'])} @{row['worst_layer']}",
        lambda row: row["worst_layer_error"],
    ),
    Column(
        "sat/ flush/ nonf",
        "quantiser counters: saturated elements, blocks flushed to zero, non-finite blocks",
        _counters,
    ),
    _number("prefill tok/s", "whole model, prefill", "prefill_tokens_per_second", lambda v: fixed(v, 0)),
    _number("decode tok/s", "whole model, one token at a time", "decode_tokens_per_second", lambda v: fixed(v, 1)),
)

STRESS_COLUMNS = (
    Column("recipe", "name, then fields that differ from the named recipe", lambda row: row["recipe"]),
    Column("KL", "without the stress", lambda row: small(row["unstressed"]["kl_mean"])),
    Column("KL stressed", "with the stress", lambda row: small(row["stressed"]["kl_mean"])),
    _number("KL ratio", "stressed / unstressed", "kl_ratio", small),
    Column("ppl", "without the stress", lambda row: fixed(row["unstressed"]["ppl"])),
    Column("ppl stressed", "with the stress", lambda row: fixed(row["stressed"]["ppl"])),
    _number("ppl ratio", "stressed / unstressed", "ppl_ratio", small),
    Column(
        "top-1 %",
        "agreement with the reference, without the stress",
        lambda row: fixed(100 * row["unstressed"]["top1_agreement"]),
    ),
    Column("top-1 % stressed", "the same with the stress", lambda row: fixed(100 * row["stressed"]["top1_agreement"])),
)


def capacity_groups(capacity: list[dict]) -> list[tuple[str, int]]:
    """(model, context) pairs in order of appearance."""
    return list(dict.fromkeys((row["model"], row["context"]) for row in capacity))


def capacity_table(capacity: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells: per model and context, gigabytes of one sequence and sequences that fit."""
    groups = capacity_groups(capacity)
    headings = ["recipe"]
    for model, context in groups:
        headings += [f"{model} {context // 1024}k GB", "fit"]
    cells: dict[str, list[str]] = {}
    for row in capacity:
        line = cells.setdefault(row["recipe"], [row["recipe"]])
        line += [fixed(row["cache_gb"]), str(row["sequences_on_80gb"])]
    return headings, list(cells.values())
