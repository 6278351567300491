from mpfa.eval.checks import check_rows, check_stress


def stress_row(recipe: str, plain: float, stressed: float) -> dict:
    return {
        "recipe": recipe,
        "unstressed": {"kl_mean": plain},
        "stressed": {"kl_mean": stressed},
        "kl_ratio": stressed / plain,
    }


def test_a_16_bit_row_far_from_the_reference_fails():
    assert [c["passed"] for c in check_rows([{"recipe": "bf16", "kl_mean": 2e-3}])] == [False]
    assert [c["passed"] for c in check_rows([{"recipe": "bf16", "kl_mean": float("nan")}])] == [False]
    assert check_rows([{"recipe": "fp8", "kl_mean": 1.0}]) == []


def test_stress_expects_only_the_centred_recipe_to_hold():
    rows = [
        stress_row("bf16", 1e-5, 5e-3),
        stress_row("mxfp4", 0.02, 0.021),
        stress_row("mxfp4,centre=none", 0.03, 3.0),
    ]
    assert all(c["passed"] for c in check_stress(rows))
    rows[1] = stress_row("mxfp4", 0.02, 0.04)
    rows[2] = stress_row("mxfp4,centre=none", 0.03, 0.03)
    assert [c["passed"] for c in check_stress(rows)] == [True, False, False]
