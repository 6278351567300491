import pytest

import mpfa
from mpfa.eval.errors import EvalError
from mpfa.eval.settings import Settings, Span, parse_recipes


def test_semicolon_stands_for_the_comma_inside_a_recipe():
    assert parse_recipes("bf16, mxfp4;centre=none,bf16") == ("bf16", "mxfp4,centre=none")


def test_recipe_without_a_name():
    assert parse_recipes("k=nvfp4;v=fp8_e4m3,bf16") == ("k=nvfp4,v=fp8_e4m3", "bf16")


def test_override_written_with_a_comma_is_not_taken_for_a_recipe():
    with pytest.raises(EvalError, match="'mxfp4;centre=none'"):
        parse_recipes("mxfp4,centre=none")


def test_no_recipe():
    with pytest.raises(EvalError, match="empty"):
        parse_recipes(" , ")


def test_steps_cover_prefill_in_chunks_then_single_tokens():
    assert Span(context=10, decode=2, chunk=4).steps() == [(0, 4), (4, 8), (8, 10), (10, 11), (11, 12)]


@pytest.mark.parametrize(
    ("span", "message"),
    [
        (Span(8, 4, 4), "--context 8 is too short"),
        (Span(128, 0, 64), "--decode 0"),
        (Span(128, 4, 0), "--chunk 0"),
    ],
)
def test_lengths_that_cannot_work(span, message):
    with pytest.raises(EvalError, match=message):
        Settings("any", ("bf16",), span)


def test_unknown_recipe_is_refused_before_the_model_is_loaded():
    with pytest.raises(mpfa.MpfaError, match="no_such"):
        Settings("any", ("no_such_recipe",), Span(128, 4, 64))
