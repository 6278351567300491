"""Command line `mpfa-eval`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import mpfa
from mpfa.eval.errors import EvalError
from mpfa.eval.gguf_packages import PACKAGED_MODELS
from mpfa.eval.report.numbers import write_file, write_json
from mpfa.eval.report.terminal import render_terminal
from mpfa.eval.settings import Settings, Span, default_cache_dir, parse_recipes

DEFAULT_RECIPES = "bf16,fp8,nvfp4,mxfp4,mpfa"
EPILOG = """\
A recipe is a name of the library, or a name with overrides. Inside a recipe write ';' where the
library writes ',' and quote the list:  --recipes 'bf16,mxfp4,mxfp4;centre=none'

Exit status: 0 all checks passed, 1 a check failed, 2 something given cannot be used.
"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpfa-eval",
        description="Compare attention recipes with a model's own float32 attention on the same text.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="smollm2-135m", help=f"{', '.join(PACKAGED_MODELS)}, a model folder, or FILE.gguf")
    add("--recipes", default=DEFAULT_RECIPES, metavar="LIST", help=f"default: {DEFAULT_RECIPES}")
    add("--context", type=int, default=4096, metavar="N", help="tokens to prefill (default: %(default)s)")
    add("--decode", type=int, default=64, metavar="N", help="tokens to decode one by one (default: %(default)s)")
    add("--chunk", type=int, default=256, metavar="N", help="tokens per prefill step (default: %(default)s)")
    add("--stress", metavar="NAME", help="kbias: run every recipe also with a large constant added to all keys")
    add("--stress-recipes", metavar="LIST", help="recipes to stress (default: those of --recipes)")
    add("--text", metavar="FILE", help="UTF-8 text (default: prose of the Debian package debian-handbook)")
    add("--threads", type=int, metavar="N", help="threads of the model's matrix products (default: all cores)")
    add(
        "--cache-dir",
        type=Path,
        default=default_cache_dir(),
        metavar="DIR",
        help="converted models (default: %(default)s)",
    )
    add("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    add("--html", type=Path, metavar="FILE", help="write a self-contained page with plots")
    return parser


def settings_from(args: argparse.Namespace) -> Settings:
    recipes = parse_recipes(args.recipes)
    if args.stress_recipes and not args.stress:
        raise EvalError("--stress-recipes needs the name of a stress; add --stress kbias")
    stressed = parse_recipes(args.stress_recipes) if args.stress_recipes else recipes
    return Settings(
        model=args.model,
        recipes=recipes,
        span=Span(args.context, args.decode, min(args.chunk, args.context)),
        stress=args.stress,
        stress_recipes=stressed if args.stress else (),
        text=args.text,
        threads=args.threads,
        cache_dir=args.cache_dir,
    )


def run_and_report(settings: Settings, json_path: Path | None, html_path: Path | None) -> int:
    """Evaluate, print, write files; the exit status of the command."""
    try:
        # OpenMP workers of torch would otherwise spin on the cores that this library's threads need next.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # Imported here so that --help and wrong options answer at once, and OpenMP reads the line above.
        from mpfa.eval.evaluate import evaluate
        from mpfa.eval.report.html import render_html

        report = evaluate(settings)
        print(render_terminal(report))
        if json_path is not None:
            write_json(report, json_path)
        if html_path is not None:
            write_file(html_path, render_html(report))
    except (EvalError, mpfa.MpfaError) as error:
        print(f"mpfa-eval: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"mpfa-eval: the package '{error.name}' is missing; run: pip install 'mpfa[eval]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mpfa-eval: interrupted", file=sys.stderr)
        return 130
    return 0 if all(check["passed"] for check in report["checks"]) else 1


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        settings = settings_from(args)
    except (EvalError, mpfa.MpfaError) as error:
        print(f"mpfa-eval: {error}", file=sys.stderr)
        return 2
    return run_and_report(settings, args.json, args.html)
