"""Evaluation text: English prose of the Debian handbook, or a file of the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from mpfa.eval.errors import EvalError

HANDBOOK = Path("/usr/share/doc/debian-handbook/html/en-US")
VOID_TAGS = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"})
HEADINGS = frozenset({"h1", "h2", "h3", "h4"})


@dataclass(frozen=True)
class Text:
    """A named text and the SHA-256 of its UTF-8 bytes."""

    name: str
    content: str
    sha256: str


class _LinkOrder(HTMLParser):
    """Local files in the order in which a page first links to them."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, None] = {}

    def handle_starttag(self, tag, attrs):
        href = dict(attrs).get("href") or ""
        name = href.split("#")[0]
        if tag == "a" and name.endswith(".html") and "/" not in name:
            self.files.setdefault(name)


class _Prose(HTMLParser):
    """Headings and paragraphs of one page; listings, tables and navigation are left out.

    The handbook marks a paragraph as <div class="para">, which may contain <pre> listings.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._stack: list[str] = []
        self._pieces: list[str] = []

    @staticmethod
    def _role(tag: str, attrs) -> str:
        classes = (dict(attrs).get("class") or "").split()
        if tag in {"pre", "table", "script", "style"} or "docnav" in classes or "toc" in classes:
            return "skip"
        if tag in HEADINGS or (tag == "div" and "para" in classes):
            return "block"
        return "plain"

    def handle_starttag(self, tag, attrs):
        if tag in VOID_TAGS:
            return
        role = self._role(tag, attrs)
        if role == "block":
            self._flush()
        self._stack.append(role)

    def handle_endtag(self, tag):
        if tag in VOID_TAGS or not self._stack:
            return
        if self._stack.pop() == "block":
            self._flush()

    def handle_data(self, data):
        if "block" in self._stack and "skip" not in self._stack:
            self._pieces.append(data)

    def _flush(self) -> None:
        text = " ".join("".join(self._pieces).split())
        self._pieces.clear()
        if text:
            self.blocks.append(text)


def prose_of_html(html: str) -> str:
    """Headings and paragraphs of a page, separated by blank lines."""
    parser = _Prose()
    parser.feed(html)
    parser.close()
    return "\n\n".join(parser.blocks)


def read_handbook(folder: Path = HANDBOOK) -> str:
    """The handbook's prose in reading order."""
    index = folder / "index.html"
    if not index.is_file():
        raise EvalError(
            f"no evaluation text: {index} does not exist; install the Debian package "
            "'debian-handbook' or give a text of your own with --text FILE"
        )
    order = _LinkOrder()
    order.feed(index.read_text(encoding="utf-8"))
    pages = [folder / name for name in order.files if name != "index.html"]
    return "\n\n".join(prose_of_html(p.read_text(encoding="utf-8")) for p in pages if p.is_file())


def load_text(path: str | None) -> Text:
    """The user's file, or the handbook when `path` is None."""
    if path is None:
        name, content = "Debian handbook (en-US prose)", read_handbook()
    else:
        name = Path(path).name
        try:
            content = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            reason = error.strerror or "it cannot be read"
            raise EvalError(f"--text {path}: {reason}; give a readable UTF-8 text file") from None
        except UnicodeDecodeError:
            raise EvalError(f"--text {path} is not UTF-8 text; convert it (for example with iconv) first") from None
    return Text(name, content, hashlib.sha256(content.encode()).hexdigest())


def tokenize(text: Text, tokenizer, needed: int):
    """The first `needed` token ids of the text, shape [1, needed], int64.

    Only as much of the text as can matter is handed to the tokenizer: at least 12 characters per
    token are kept, more than English prose needs.
    """
    ids = tokenizer(text.content[: needed * 12], return_tensors="pt").input_ids
    if ids.shape[1] < needed:
        raise EvalError(
            f"the text '{text.name}' has {ids.shape[1]} tokens but this run needs {needed}; "
            "shorten --context or --decode, or give a longer --text"
        )
    return ids[:, :needed]
