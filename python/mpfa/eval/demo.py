"""`python -m mpfa.eval.demo`: a few minutes on two cores, every recipe with and without centring."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mpfa.eval.cli import run_and_report
from mpfa.eval.settings import Settings, Span

CENTRED_BY_DEFAULT = (
    "int4",
    "nvfp4",
    "nvfp4_4over6",
    "mxfp4",
    "mxfp4_ocp",
    "int4_int8",
    "mpfa",
    "mpfa_static",
    "direct_p_fast",
    "direct_p_accurate",
    "sage2",
    "sage3",
    "bitdecoding_nvfp4",
)
UNCENTRED_BY_DEFAULT = ("fp8", "fp8_loglin", "int8", "turboquant_4bit", "mxattention")
STRESS_RECIPES = ("bf16", "mxfp4", "mxfp4,centre=none", "mpfa", "mpfa,rank_one=off")


def demo_recipes() -> tuple[str, ...]:
    """bf16, then each recipe followed by the same recipe with the opposite choice of centring."""
    recipes = ["bf16"]
    for name in UNCENTRED_BY_DEFAULT:
        recipes += [name, f"{name},centre=mean"]
    for name in CENTRED_BY_DEFAULT:
        recipes += [name, f"{name},centre=none"]
    return tuple(recipes)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mpfa.eval.demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of report.json and report.html")
    parser.add_argument("--cache-dir", type=Path, default=Path("build/models"), help="folder of the converted model")
    args = parser.parse_args(argv)
    settings = Settings(
        model="smollm2-135m",
        recipes=demo_recipes(),
        span=Span(context=640, decode=32, chunk=256),
        stress="kbias",
        stress_recipes=STRESS_RECIPES,
        cache_dir=args.cache_dir,
    )
    status = run_and_report(settings, args.out / "report.json", args.out / "report.html")
    if status < 2:
        print(f"\nreport: {args.out / 'report.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
