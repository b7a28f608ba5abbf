"""Hook of mkdocs: a link to a file outside of docs/ becomes its path, or a link into `repo_url` if there is one."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)\s]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Return the text of a page with such links rewritten."""

    def rewritten(link: re.Match[str]) -> str:
        label, path = link.groups()
        if config.repo_url:
            return f"[{label}]({config.repo_url.rstrip('/')}/blob/HEAD/{path})"
        return f"`{path}`" if label.strip("`") in path else f"{label} (`{path}`)"

    return _OUTSIDE.sub(rewritten, markdown)
