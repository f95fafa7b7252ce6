"""Parse a page into elements with attributes and text."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(" ".join([*self.pieces, *(child.text for child in self.children)]).split())

    def all(self, tag: str) -> list[Element]:
        found = [self] if self.tag == tag else []
        return found + [item for child in self.children for item in child.all(tag)]

    def every(self) -> list[Element]:
        return [self, *(item for child in self.children for item in child.every())]


class Reader(HTMLParser):
    """Build the tree, and check that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("document", {})
        self.here = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        child = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.here.children.append(child)
        if tag not in VOID:
            self.here = child

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.here.children.append(Element(tag, {name: value or "" for name, value in attrs}, self.here))

    def handle_endtag(self, tag: str) -> None:
        assert self.here.tag == tag, f"</{tag}> closes <{self.here.tag}>"
        assert self.here.parent is not None
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.pieces.append(data)


@cache
def read(html: str) -> Element:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.here is reader.root, f"<{reader.here.tag}> is not closed"
    return reader.root


def by_id(page: Element, name: str) -> Element:
    (found,) = [item for item in page.every() if item.attributes.get("id") == name]
    return found
