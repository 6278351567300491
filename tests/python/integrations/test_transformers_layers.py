"""Recipes of single layers: exceptions in 16 bits, layers with different head dims."""

import pytest

torch = pytest.importorskip("torch", reason="the adapter needs torch")
pytest.importorskip("transformers", reason="the adapter needs transformers")

from tiny_models import tiny_gemma4, tiny_llama  # noqa: E402

import mpfa  # noqa: E402
from mpfa.integrations.transformers import MpfaCache, StaticMeans, register  # noqa: E402


def made(factory):
    register()
    torch.manual_seed(0)
    model = factory().eval()
    model.set_attn_implementation("mpfa")
    return model


def prompt() -> torch.Tensor:
    return torch.randint(0, 97, (2, 21), generator=torch.Generator().manual_seed(3))


def logits(model, cache):
    return torch.cat([model(prompt()[:, a:b], cache=cache).logits for a, b in ((0, 13), (13, 20), (20, 21))], dim=1)


@torch.inference_mode()
def test_every_way_to_name_layers_is_the_same():
    model = made(tiny_gemma4)
    expected = ["bf16", "mxfp4", "mxfp4", "fp8"]
    caches = [
        MpfaCache(model.config, "mxfp4", layer_recipes=chosen)
        for chosen in (
            {0: "bf16", -1: "fp8"},
            {0: "bf16", 3: "fp8", 1: "mxfp4"},
            ["bf16", None, None, "fp8"],
            lambda layer: {0: "bf16", 3: "fp8"}.get(layer),
        )
    ]
    assert all(cache.recipes == expected for cache in caches)
    results = [logits(model, cache) for cache in caches]
    assert all(torch.equal(result, results[0]) for result in results)
    layers = caches[0].layers
    assert [layer.packed.recipe for layer in layers] == expected
    # 4 query heads, 1 KV head of 32 or 64 channels: each layer has the bytes of its own recipe and head dim.
    assert [layer.packed.bytes_per_token for layer in layers] == [128, 68, 34, 136]
    assert caches[0].bytes_per_token == 366


@torch.inference_mode()
@pytest.mark.parametrize("factory", [tiny_llama, tiny_gemma4], ids=["llama", "gemma4"])
def test_layers_kept_in_16_bits_bring_the_logits_nearer(factory):
    model = made(factory)
    last = model.config.num_hidden_layers - 1
    exact = logits(model, MpfaCache(model.config, "bf16"))

    def error(layer_recipes):
        cache = MpfaCache(model.config, "mxfp4,centre=none", layer_recipes=layer_recipes)
        return (logits(model, cache) - exact).norm() / exact.norm()

    assert error(lambda layer: "bf16") == 0
    assert 0 < error({0: "bf16"}) < error(None)
    assert 0 < error({last: "bf16"}) < error(None)


@torch.inference_mode()
def test_generate_with_mixed_layers_edits_all_of_them():
    model = made(tiny_llama)
    arguments = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones(2, 21, dtype=torch.long)}
    mixed = {1: "kv=nvfp4,v_mean=page,sink=2"}
    cache = MpfaCache(model.config, "bf16", layer_recipes=mixed, page_size=16)
    once = model.generate(prompt(), cache=cache, **arguments)
    cache.crop(-(cache.get_seq_length() - 20))
    again = model.generate(once[:, :21], cache=cache, **arguments)
    assert again.tolist() == once.tolist()


@torch.inference_mode()
def test_static_means_go_to_the_layers_that_take_them():
    model = made(tiny_llama)
    means = StaticMeans(k=torch.zeros(2, 32))
    cache = MpfaCache(
        model.config, "mxfp4,centre=static", layer_recipes={0: "bf16"}, static_means=[None, means]
    )
    plain = MpfaCache(model.config, "mxfp4,centre=none", layer_recipes={0: "bf16"})
    assert torch.equal(logits(model, cache), logits(model, plain))


def test_what_names_no_layer_is_refused():
    config = tiny_llama().config
    for chosen, message in (
        ({2: "bf16"}, r"names layer 2; indices are in -2\.\.1"),
        ({True: "bf16"}, "names layer True"),
        ({0: "bf16", -2: "fp8"}, "names layer 0 twice"),
        (["bf16"], "1 entries but the model has 2 layers"),
        ("bf16", "layer_recipes is a str"),
        ({1: "no_such"}, "layer 1: .*no_such"),
        ({1: 4}, "layer 1: recipe is a int"),
        (lambda layer: "no_such", "layer 0: "),
    ):
        with pytest.raises(mpfa.MpfaError, match=message):
            MpfaCache(config, "mxfp4", layer_recipes=chosen)
