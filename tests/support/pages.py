"""Parses the comparison's HTML page."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The parts of a page that the tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = str(dict(attrs).get("id")) if tag == "script" else tag

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside not in ("style", "None"):
            self.text.append(data)

    def attributes(self, *names: str) -> list[str]:
        return [str(value) for _, attributes in self.tags for name, value in attributes.items() if name in names]
