"""A short run on the real SmolLM2, when the demo has already converted it."""

from pathlib import Path

import pytest

from mpfa.eval.evaluate import evaluate
from mpfa.eval.models import CHECKSUMS
from mpfa.eval.settings import Settings, Span
from mpfa.eval.text import HANDBOOK

MODELS = Path(__file__).parents[3] / "build" / "models"

pytestmark = [
    pytest.mark.skipif(
        not (MODELS / "smollm2-135m" / CHECKSUMS).exists(), reason="SmolLM2 is not converted yet; run: make demo"
    ),
    pytest.mark.skipif(not HANDBOOK.exists(), reason="the Debian package debian-handbook is not installed"),
]


def test_perplexity_and_order_of_recipes():
    report = evaluate(
        Settings("smollm2-135m", ("bf16", "fp8", "mxfp4"), Span(context=128, decode=4, chunk=128), cache_dir=MODELS)
    )
    assert 10 < report["reference"]["ppl"] < 60
    assert all(check["passed"] for check in report["checks"])
    kl = [row["kl_mean"] for row in report["rows"]]
    assert kl[0] < 1e-3 < kl[1] < kl[2] < 0.5
