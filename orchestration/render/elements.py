"""Elements of HTML and SVG, and texts with their styles. Text is escaped here, once."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

from orchestration.render.table import Text, spans

_TAGS = {"strong": "b", "code": "code"}
# The classes of styles, of texts and of rows.
CLASSES = {"warning": "warning", "bad": "invalid", "faint": "note"}


class Html(str):
    """A string of HTML, which is not escaped again."""


def element(tag: str, *content: str, css: str = "", **attributes: str) -> Html:
    """Return an element with class `css`; attributes and content other than `Html` are escaped."""
    inner = "".join(part if isinstance(part, Html) else escape(part) for part in content)
    named = {"class": css, **attributes} if css else attributes
    text = "".join(f' {name.replace("_", "-")}="{escape(v)}"' for name, v in named.items())
    return Html(f"<{tag}{text}>{inner}</{tag}>")


def inline(text: Text) -> Html:
    """Return a text with its styles and links."""
    parts = []
    for part in spans(text):
        shown = Html(escape(part.text).replace("\n", "<br>"))
        if part.style in _TAGS:
            shown = element(_TAGS[part.style], shown)
        elif part.style in CLASSES:
            shown = element("span", shown, css=CLASSES[part.style])
        parts.append(element("a", shown, href=quote(part.link, "/#:")) if part.link else shown)
    return Html("".join(parts))
