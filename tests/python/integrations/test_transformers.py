"""generate() and forward passes through the packed cache, against eager attention."""

import pytest

torch = pytest.importorskip("torch", reason="the adapter needs torch")
pytest.importorskip("transformers", reason="the adapter needs transformers")

from tiny_models import tiny_gemma3, tiny_llama  # noqa: E402

import mpfa  # noqa: E402
from mpfa.integrations.transformers import MpfaCache, register  # noqa: E402


@pytest.fixture(params=[tiny_llama, tiny_gemma3], ids=["llama", "gemma3"])
def model(request):
    register()
    torch.manual_seed(0)
    return request.param().eval()


def prompt(batch: int = 2, length: int = 21) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_generate_continues_like_eager(model):
    arguments = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones(2, 21, dtype=torch.long)}
    model.set_attn_implementation("eager")
    expected = model.generate(prompt(), **arguments)
    model.set_attn_implementation("mpfa")
    cache = MpfaCache(model.config, recipe="bf16")
    got = model.generate(prompt(), cache=cache, **arguments)
    assert got.tolist() == expected.tolist()
    assert cache.get_seq_length() == 21 + 11


@torch.inference_mode()
@pytest.mark.parametrize(("recipe", "bound"), [("bf16", 1e-2), ("mxfp4", 0.3)])
def test_chunks_and_single_steps_match_eager_logits(model, recipe, bound):
    model.set_attn_implementation("eager")
    expected = model(prompt(), use_cache=False).logits
    model.set_attn_implementation("mpfa")
    cache = MpfaCache(model.config, recipe=recipe)
    pieces = [model(prompt()[:, a:b], cache=cache).logits for a, b in ((0, 13), (13, 19), (19, 20), (20, 21))]
    error = (torch.cat(pieces, dim=1) - expected).norm() / expected.norm()
    assert error < bound


@torch.inference_mode()
def test_bytes_and_counters_come_from_the_packed_layers(model):
    model.set_attn_implementation("mpfa")
    cache = MpfaCache(model.config, recipe="bf16")
    model(prompt(), cache=cache)
    config = model.config
    assert cache.bytes_per_token == 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    assert cache.memory_bytes > 0
    assert cache.counters["nonfinite"] == 0


@torch.inference_mode()
def test_padding_is_refused(model):
    model.set_attn_implementation("mpfa")
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[0, :3] = 0
    with pytest.raises(mpfa.MpfaError, match="padded batches"):
        model(prompt(), attention_mask=mask, cache=MpfaCache(model.config, "bf16"))


@torch.inference_mode()
def test_foreign_cache_is_refused(model):
    model.set_attn_implementation("mpfa")
    with pytest.raises(mpfa.MpfaError, match="MpfaCache"):
        model(prompt())


def test_gradients_are_refused(model):
    model.set_attn_implementation("mpfa")
    with pytest.raises(mpfa.MpfaError, match="no gradient"):
        model(prompt(), cache=MpfaCache(model.config, "bf16"))


@torch.inference_mode()
def test_attention_weights_are_refused(model):
    model.set_attn_implementation("mpfa")
    with pytest.raises(mpfa.MpfaError, match="output_attentions"):
        model(prompt(), cache=MpfaCache(model.config, "bf16"), output_attentions=True)


@torch.inference_mode()
def test_mask_of_the_users_own_is_refused(model):
    model.set_attn_implementation("mpfa")
    mask = torch.zeros(2, 1, 21, 21)
    with pytest.raises(mpfa.MpfaError, match="takes no mask tensor"):
        model(prompt(), attention_mask=mask, cache=MpfaCache(model.config, "bf16"))


@torch.inference_mode()
def test_changing_the_batch_is_refused(model):
    model.set_attn_implementation("mpfa")
    cache = MpfaCache(model.config, "bf16")
    model(prompt(), cache=cache)
    with pytest.raises(mpfa.MpfaError, match="repeating the batch"):
        cache.batch_repeat_interleave(2)
    with pytest.raises(mpfa.MpfaError, match="selecting"):
        cache.batch_select_indices(torch.tensor([0]))


def test_unknown_recipe_fails_at_once():
    with pytest.raises(mpfa.MpfaError, match="no_such"):
        MpfaCache(tiny_llama().config, recipe="no_such")
