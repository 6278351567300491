import torch

from mpfa.eval.stress import key_bias


def test_bias_is_deterministic_and_differs_between_heads_and_layers():
    bias = key_bias(3, 2, 64)
    assert torch.equal(bias, key_bias(3, 2, 64))
    assert not torch.equal(bias[0], bias[1])
    assert not torch.equal(bias, key_bias(4, 2, 64))


def test_bias_has_one_large_and_a_few_medium_channels():
    magnitudes = key_bias(0, 1, 64)[0].abs().sort(descending=True).values
    assert magnitudes[:6].tolist() == [300, 30, 30, 30, 30, 0]
