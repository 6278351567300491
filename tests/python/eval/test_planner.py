import pytest

from mpfa.eval.planner import MODELS, bytes_per_token, plan_capacity, sequences_that_fit


@pytest.mark.parametrize(("shape", "expected"), [(MODELS[0], 131_072), (MODELS[1], 163_840)])
def test_bf16_bytes_per_token_are_those_of_the_model_cards(shape, expected):
    assert bytes_per_token("bf16", shape) == expected


def test_weights_are_subtracted_before_sequences_are_counted():
    llama = MODELS[0]
    assert sequences_that_fit(10e9, llama, card_bytes=llama.weight_bytes + 25e9) == 2
    assert sequences_that_fit(10e9, llama, card_bytes=llama.weight_bytes - 1) == 0


def test_overrides_share_the_line_of_their_recipe():
    rows = plan_capacity(("bf16", "mxfp4", "mxfp4,centre=none"))
    assert {row["recipe"] for row in rows} == {"bf16", "mxfp4"}
    assert len(rows) == 2 * len(MODELS) * 2
