"""The exception for everything a user can put right."""

from __future__ import annotations


class EvalError(ValueError):
    """A sentence for the user: what was given, what is allowed, what to do."""
