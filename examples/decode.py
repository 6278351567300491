"""Decode with a 4-bit KV cache: append keys and values, then attend, one token at a time."""

import numpy as np

import mpfa

PROMPT, STEPS, Q_HEADS, KV_HEADS, DIM = 512, 32, 8, 2, 128


def decode(recipe: str) -> np.ndarray:
    """Outputs [STEPS, Q_HEADS, DIM] with keys and values kept as the recipe says."""
    random = np.random.default_rng(1)

    def gaussian(tokens: int, heads: int) -> np.ndarray:
        return random.standard_normal((1, tokens, heads, DIM), dtype=np.float32)

    cache = mpfa.PagedCache(recipe, q_heads=Q_HEADS, kv_heads=KV_HEADS, head_dim=DIM, capacity=PROMPT + STEPS)
    outputs = []
    for step in range(STEPS):
        tokens = PROMPT if step == 0 else 1
        cache.append(gaussian(tokens, KV_HEADS), gaussian(tokens, KV_HEADS))
        outputs.append(cache.attend(gaussian(1, Q_HEADS), causal=True)[0, 0])
    print(f"{recipe:6} {cache.bytes_per_token:6.0f} bytes per token")
    return np.stack(outputs)


if __name__ == "__main__":
    wide, packed = decode("bf16"), decode("mxfp4")
    relative = np.linalg.norm(packed - wide) / np.linalg.norm(wide)
    print(f"relative L2 error of mxfp4 against bf16: {relative:.3f}")
