from pathlib import Path

import pytest

from mpfa.eval.errors import EvalError
from mpfa.eval.text import load_text, prose_of_html, read_handbook


def test_prose_keeps_paragraphs_and_headings_only():
    html = (
        '<ul class="docnav"><li>Next</li></ul><h1 class="title">Title</h1>'
        '<div class="para">One <code>two</code>,<br/>three.<pre class="screen">$ ls</pre> four</div>'
        '<div class="toc"><div class="para">contents</div></div><table><tr><td>cell</td></tr></table>'
    )
    assert prose_of_html(html) == "Title\n\nOne two,three. four"


def test_handbook_follows_the_order_of_its_index(tmp_path: Path):
    (tmp_path / "index.html").write_text('<a href="b.html">b</a><a href="a.html#x">a</a><a href="b.html#y">b</a>')
    for name in "ab":
        (tmp_path / f"{name}.html").write_text(f'<div class="para">page {name}</div>')
    assert read_handbook(tmp_path) == "page b\n\npage a"


def test_missing_handbook_says_what_to_install(tmp_path: Path):
    with pytest.raises(EvalError, match=r"debian-handbook.*--text"):
        read_handbook(tmp_path)


def test_text_that_is_not_utf8(tmp_path: Path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(EvalError, match="not UTF-8"):
        load_text(str(path))
