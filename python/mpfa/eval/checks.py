"""Assertions on a finished evaluation; a failed one makes the command exit with status 1."""

from __future__ import annotations

import math

from mpfa.eval.settings import BASELINE

BASELINE_KL = 1e-3
BASELINE_KL_STRESSED = 1e-2
CENTRED_RATIO = 1.3
COLLAPSE_RATIO = 3.0


def _check(name: str, passed: bool, detail: str) -> dict:
    return {"name": name, "passed": bool(passed), "detail": detail}


def check_rows(rows: list[dict]) -> list[dict]:
    """The 16-bit row must agree with the reference, or no other row means anything."""
    return [
        _check(
            f"{BASELINE} agrees with the reference",
            row["kl_mean"] < BASELINE_KL,
            f"mean KL {row['kl_mean']:.2e}, must be below {BASELINE_KL:g}",
        )
        for row in rows
        if row["recipe"] == BASELINE
    ]


def check_stress(stress_rows: list[dict]) -> list[dict]:
    """16 bits bear the stress; of a recipe run with and without centring, only the centred one does."""
    by_recipe = {row["recipe"]: row for row in stress_rows}
    checks = []
    if BASELINE in by_recipe:
        kl = by_recipe[BASELINE]["stressed"]["kl_mean"]
        checks.append(
            _check(
                f"{BASELINE} bears the stress",
                kl < BASELINE_KL_STRESSED,
                f"stressed KL {kl:.2e}, must be below {BASELINE_KL_STRESSED:g}",
            )
        )
    for recipe, row in by_recipe.items():
        uncentred = by_recipe.get(f"{recipe},centre=none")
        if uncentred is not None:
            checks.append(
                _check(
                    f"{recipe} bears the stress",
                    row["kl_ratio"] <= CENTRED_RATIO,
                    f"KL ratio {row['kl_ratio']:.2f}, must be at most {CENTRED_RATIO}",
                )
            )
            collapsed = uncentred["kl_ratio"]
            checks.append(
                _check(
                    f"{recipe},centre=none does not",
                    collapsed >= COLLAPSE_RATIO or math.isnan(collapsed),
                    f"KL ratio {collapsed:.1f}, expected at least {COLLAPSE_RATIO:g}",
                )
            )
    return checks
