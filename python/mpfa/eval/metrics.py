"""Agreement of a run with the reference run, token by token and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

ROWS_AT_ONCE = 128


def attention_modules(model) -> dict[int, torch.nn.Module]:
    """Self-attention modules by layer index: those with an output projection called o_proj."""
    found = {
        module.layer_idx: module
        for module in model.modules()
        if hasattr(module, "o_proj") and isinstance(getattr(module, "layer_idx", None), int)
    }
    return dict(sorted(found.items()))


@contextmanager
def tap_attention_outputs(model, consume: Callable[[int, torch.Tensor], None]) -> Iterator[None]:
    """Hand every attention output [s, q_heads * d_v] (before o_proj) to `consume(layer, output)`."""

    def hook_for(layer: int):
        return lambda _module, args: consume(layer, args[0].flatten(0, -2))

    handles = [
        module.o_proj.register_forward_pre_hook(hook_for(layer)) for layer, module in attention_modules(model).items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class ReferenceRecord:
    """What is kept of the reference run.

    log_probs [n, vocab] and the attention outputs of each layer [n, q_heads * d_v] are float32 and
    filled in order of position; targets [n] are the next tokens.
    """

    def __init__(self, targets: torch.Tensor, vocab: int) -> None:
        n = targets.shape[0]
        self.targets = targets
        self.log_probs = torch.empty(n, vocab)
        self.attention: dict[int, torch.Tensor] = {}
        self._filled: dict[int, int] = {}

    def add_logits(self, logits: torch.Tensor, start: int) -> None:
        """Store logits [s, vocab] of positions start..start+s-1."""
        for rows, block in _row_blocks(logits):
            self.log_probs[start + rows.start : start + rows.stop] = torch.log_softmax(block.float(), dim=-1)

    def add_attention(self, layer: int, output: torch.Tensor) -> None:
        """Store the next attention outputs [s, width] of a layer."""
        if layer not in self.attention:
            self.attention[layer] = torch.empty(self.targets.shape[0], output.shape[-1])
        begin = self._filled.get(layer, 0)
        self._filled[layer] = begin + output.shape[0]
        self.attention[layer][begin : self._filled[layer]] = output

    def finish(self) -> None:
        """Derive what every comparison needs: most likely token and negative log-likelihood, both [n]."""
        self.top1 = self.log_probs.argmax(dim=-1)
        self.nll = -self.log_probs.gather(1, self.targets[:, None])[:, 0].double().numpy()


class Comparison:
    """Collects a run's deviation from the reference while the run is under way."""

    def __init__(self, reference: ReferenceRecord) -> None:
        n = reference.targets.shape[0]
        self.reference = reference
        self.kl = np.empty(n)
        self.nll = np.empty(n)
        self.agrees = np.empty(n, dtype=bool)
        self._position: dict[int, int] = {}
        self._error: dict[int, float] = {}
        self._norm: dict[int, float] = {}

    def add_logits(self, logits: torch.Tensor, start: int) -> None:
        """Compare logits [s, vocab] of positions start..start+s-1; KL in nats."""
        ref = self.reference
        for rows, block in _row_blocks(logits):
            at = slice(start + rows.start, start + rows.stop)
            log_q = torch.log_softmax(block.float(), dim=-1)
            log_p = ref.log_probs[at]
            self.nll[at] = -log_q.gather(1, ref.targets[at, None])[:, 0].double().numpy()
            self.agrees[at] = (log_q.argmax(dim=-1) == ref.top1[at]).numpy()
            self.kl[at] = (log_p.exp() * (log_p - log_q)).sum(dim=-1).double().numpy()

    def add_attention(self, layer: int, output: torch.Tensor) -> None:
        """Compare the next attention outputs [s, width] of a layer."""
        begin = self._position.get(layer, 0)
        self._position[layer] = begin + output.shape[0]
        expected = self.reference.attention[layer][begin : self._position[layer]]
        self._error[layer] = self._error.get(layer, 0.0) + float((output - expected).double().square().sum())
        self._norm[layer] = self._norm.get(layer, 0.0) + float(expected.double().square().sum())

    def layer_errors(self) -> list[float]:
        """Relative L2 error of the attention output, one figure per layer."""
        return [math.sqrt(self._error[i] / self._norm[i]) for i in sorted(self._error)]

    def figures(self, context: int) -> dict:
        """Summary; positions below `context` are prefill, the others decode."""
        errors = self.layer_errors()
        worst = int(np.argmax(errors))
        return {
            "ppl": perplexity(self.nll),
            "ppl_prefill": perplexity(self.nll[:context]),
            "ppl_decode": perplexity(self.nll[context:]),
            "kl_mean": float(self.kl.mean()),
            "kl_p99": float(np.percentile(self.kl, 99)),
            "kl_prefill": float(self.kl[:context].mean()),
            "kl_decode": float(self.kl[context:].mean()),
            "top1_agreement": float(self.agrees.mean()),
            "worst_layer": worst,
            "worst_layer_error": errors[worst],
            "layer_errors": errors,
        }


def perplexity(nll: np.ndarray) -> float:
    """exp of the mean negative log-likelihood; infinite rather than an overflow."""
    mean = float(nll.mean())
    return math.exp(mean) if mean < 700 else math.inf


def _row_blocks(logits: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Blocks of rows, so that temporaries stay small beside logits of a large vocabulary."""
    for begin in range(0, logits.shape[0], ROWS_AT_ONCE):
        rows = slice(begin, min(begin + ROWS_AT_ONCE, logits.shape[0]))
        yield rows, logits[rows]
