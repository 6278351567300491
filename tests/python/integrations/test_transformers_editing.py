"""Decoding that edits the cache: rejected drafts and beams, against the same decoding with eager attention."""

import pytest

torch = pytest.importorskip("torch", reason="the adapter needs torch")
pytest.importorskip("transformers", reason="the adapter needs transformers")

from tiny_models import tiny_gemma3, tiny_llama  # noqa: E402

import mpfa  # noqa: E402
from mpfa.integrations.transformers import MpfaCache, register  # noqa: E402

EXACT = "q=f32,k=f32,v=f32,p=f32"
LENGTH, NEW = 24, 24
GREEDY = {"max_new_tokens": NEW, "do_sample": False}


def made(factory, seed: int = 0):
    torch.manual_seed(seed)
    return factory(initializer_range=0.3).eval()


@pytest.fixture(params=[tiny_llama, tiny_gemma3], ids=["llama", "gemma3"])
def model(request):
    register()
    return made(request.param)


def prompt(batch: int = 1) -> torch.Tensor:
    # Repeated, so that prompt lookup finds drafts; most of them are rejected.
    half = torch.randint(0, 97, (batch, LENGTH // 2), generator=torch.Generator().manual_seed(5))
    return torch.cat([half, half], dim=1)


def generate(model, implementation: str, cache=None, batch: int = 1, **options):
    model.set_attn_implementation(implementation)
    mask = torch.ones(batch, LENGTH, dtype=torch.long)
    extra = {} if cache is None else {"cache": cache}
    return model.generate(prompt(batch), attention_mask=mask, **extra, **(GREEDY | options)).tolist()


class Cropped(MpfaCache):
    """Counts the tokens that were dropped."""

    dropped = 0

    def crop(self, tokens_to_remove: int) -> None:
        self.dropped -= tokens_to_remove
        super().crop(tokens_to_remove)


@torch.inference_mode()
@pytest.mark.parametrize("page_size", [4, 64])
def test_prompt_lookup_is_plain_greedy_token_for_token(model, page_size):
    expected = generate(model, "eager")
    cache = Cropped(model.config, EXACT, page_size=page_size)
    assert generate(model, "mpfa", cache, prompt_lookup_num_tokens=5, max_matching_ngram_size=2) == expected
    assert cache.dropped > 0
    assert cache.get_seq_length() == LENGTH + NEW - 1


@torch.inference_mode()
def test_assistant_is_plain_greedy_token_for_token():
    register()
    model = made(tiny_llama)
    expected = generate(model, "eager")
    for seed in (0, 1):  # drafts that are always right, and that are mostly wrong
        cache = Cropped(model.config, EXACT)
        assert generate(model, "mpfa", cache, assistant_model=made(tiny_llama, seed)) == expected
        assert seed == 0 or cache.dropped > 0


@torch.inference_mode()
@pytest.mark.parametrize("recipe", ["mxfp4,centre=none", "nvfp4,centre=none,sink=4,recent=16", "fp8"])
def test_prompt_lookup_with_packed_formats_is_their_plain_greedy(model, recipe):
    expected = generate(model, "mpfa", MpfaCache(model.config, recipe, page_size=16))
    cache = Cropped(model.config, recipe, page_size=16)
    assert generate(model, "mpfa", cache, prompt_lookup_num_tokens=5, max_matching_ngram_size=2) == expected
    assert cache.dropped > 0


@torch.inference_mode()
@pytest.mark.parametrize("page_size", [4, 64])
def test_beam_search_equals_eager(model, page_size):
    options = {"num_beams": 3, "num_return_sequences": 3}
    expected = generate(model, "eager", batch=2, **options)
    cache = MpfaCache(model.config, EXACT, page_size=page_size)
    assert generate(model, "mpfa", cache, batch=2, **options) == expected


@torch.inference_mode()
def test_crop_goes_back_to_any_length(model):
    model.set_attn_implementation("mpfa")
    cache = MpfaCache(model.config, EXACT)
    whole = model(prompt(2), cache=cache).logits
    cache.crop(-10)
    again = model(prompt(2)[:, LENGTH - 10 :], cache=cache).logits
    assert torch.equal(again, whole[:, LENGTH - 10 :])
    cache.crop(-LENGTH)
    assert cache.get_seq_length() == 0
    assert torch.equal(model(prompt(2), cache=cache).logits, whole)
    for wrong in (1, -LENGTH - 1):
        with pytest.raises(mpfa.MpfaError, match="negative number"):
            cache.crop(wrong)


@torch.inference_mode()
def test_beams_of_another_batch_are_refused(model):
    model.set_attn_implementation("mpfa")
    cache = MpfaCache(model.config, EXACT)
    model(prompt(2), cache=cache)
    for wrong in ([0], [0, 1, 1], [0, 2], [-1, 0]):
        with pytest.raises(mpfa.MpfaError, match="beam_idx"):
            cache.reorder_cache(torch.tensor(wrong))
    assert cache.get_seq_length() == LENGTH
