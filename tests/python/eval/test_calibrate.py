import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import mpfa
from mpfa.eval.calibrate import calibrate_means, operands_with_static_means, select_means


@pytest.mark.parametrize(
    ("recipe", "operands"),
    [
        ("mxfp4", ""),
        ("mxfp4,centre=static", "k"),
        ("mpfa", ""),
        ("mpfa_static", "kq"),
        ("mpfa_static,centre=none", "q"),
    ],
)
def test_operands_that_take_calibrated_means(recipe, operands):
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    assert operands_with_static_means(recipe, config) == frozenset(operands)


def test_refused_recipe_keeps_its_reason():
    config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    with pytest.raises(mpfa.MpfaError, match="centre"):
        operands_with_static_means("mxfp4,centre=maybe", config)


def test_means_are_those_of_the_attention_inputs(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    values = []
    hook = model.model.layers[0].self_attn.v_proj.register_forward_hook(lambda _m, _a, out: values.append(out[0]))
    means = calibrate_means(model, torch.arange(2, 50)[None])
    hook.remove()
    assert [tuple(layer.k.shape) for layer in means] == [(2, 32)] * 2
    assert tuple(means[0].q.shape) == (4, 32)
    torch.testing.assert_close(means[0].v, values[0].mean(dim=0).view(2, 32))


def test_only_the_wanted_means_are_kept(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    means = calibrate_means(model, torch.arange(2, 50)[None])
    assert select_means(means, frozenset()) is None
    chosen = select_means(means, frozenset("q"))
    assert chosen[0].k is None and chosen[0].v is None and chosen[0].q is not None
