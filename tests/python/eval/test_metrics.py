import math

import numpy as np
import pytest
import torch

from mpfa.eval.metrics import Comparison, ReferenceRecord, perplexity

N, VOCAB, CONTEXT = 200, 50, 150


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(N, VOCAB, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def reference(logits) -> ReferenceRecord:
    record = ReferenceRecord(torch.arange(N) % VOCAB, VOCAB)
    record.add_logits(logits[:CONTEXT], 0)
    record.add_logits(logits[CONTEXT:], CONTEXT)
    record.add_attention(0, torch.ones(N, 8))
    record.finish()
    return record


def test_identical_run_has_no_divergence(reference, logits):
    run = Comparison(reference)
    run.add_logits(logits, 0)
    run.add_attention(0, torch.ones(N, 8))
    figures = run.figures(CONTEXT)
    assert abs(figures["kl_mean"]) < 1e-6
    assert figures["top1_agreement"] == 1
    assert figures["worst_layer_error"] == 0
    assert figures["ppl"] == pytest.approx(perplexity(reference.nll))


def test_kl_matches_float64(reference, logits):
    other = logits + 0.3 * torch.randn(N, VOCAB, generator=torch.Generator().manual_seed(1))
    run = Comparison(reference)
    for start in range(0, N, 70):
        run.add_logits(other[start : start + 70], start)
    p, q = (torch.log_softmax(x.double(), -1) for x in (logits, other))
    expected = (p.exp() * (p - q)).sum(-1).numpy()
    np.testing.assert_allclose(run.kl, expected, rtol=1e-4, atol=1e-6)


def test_layer_error_is_relative_l2_over_all_tokens(reference, logits):
    run = Comparison(reference)
    run.add_attention(0, torch.full((50, 8), 1.5))
    run.add_attention(0, torch.ones(N - 50, 8))
    assert run.layer_errors() == [pytest.approx(math.sqrt(50 * 0.25 / N))]


def test_perplexity_does_not_overflow():
    assert perplexity(np.array([1e4])) == math.inf
