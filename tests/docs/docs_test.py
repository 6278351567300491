"""The pages agree with the code: links lead somewhere, code is that of the examples, tables list what there is."""

import re
from pathlib import Path

import pytest

import mpfa

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("python/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


def test_readme_shows_the_examples():
    examples = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("decode.*")))
    blocks = re.findall(r"```(?:cpp|python)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    assert all(block.strip() in examples for block in blocks)


def test_readme_names_targets_that_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z ]+):", makefile, re.MULTILINE))
    known = {name for target in targets for name in target.split()}
    named = set(re.findall(r"\bmake ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert {"demo", "test"} <= named <= known


def first_column(page: str) -> list[str]:
    """Names in backticks in the first cells of all tables of a page."""
    rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_recipe_is_documented_with_its_source():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `[^`]*` \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(name, mpfa.recipe_source(name)) for name in mpfa.recipes()]


def test_every_format_is_documented():
    assert set(first_column("formats.md")) == set(mpfa.formats())


def test_guarantees_name_tests_that_exist():
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*_test.cpp"))
    defined = set(re.findall(r"^(?:TEST|TEST_P|TEST_F|RC_GTEST_PROP)\((\w+),\s*(\w+)", sources, re.MULTILINE))
    named = set(re.findall(r"`([A-Z]\w+)\.([A-Z]\w+)`", page))
    assert len(named) > 25
    assert not named - defined
