"""Number formats shared by terminal and page, and the JSON writer."""

from __future__ import annotations

import json
import math
from pathlib import Path

from mpfa.eval.errors import EvalError


def fixed(value: float, digits: int = 2) -> str:
    """Fixed-point, or scientific when that would be unreadable."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.1e}"


def small(value: float) -> str:
    """Three significant digits for figures that span decades."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    return f"{value:.3g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.1e}"


def _json_value(value):
    """JSON has neither NaN nor infinity; null says that there is no such number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    return value


def write_file(path: Path, content: str) -> None:
    """Write a report file, creating its folder; refusal in one sentence."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise EvalError(f"cannot write {path}: {error.strerror or error}; give another file name") from None


def write_json(report: dict, path: Path) -> None:
    write_file(path, json.dumps(_json_value(report), indent=1, allow_nan=False) + "\n")
