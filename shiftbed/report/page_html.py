"""Filling the page's template: every name is text, and only the page's own scripts may run."""

import base64
import hashlib
import math
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from shiftbed import __version__


def render(data: dict[str, Any], **content: Any) -> str:
    """Fills the template.

    Names are escaped, in the markup and in the data beside it; should one slip through, the page's policy lets no
    script run whose hash it does not name, and nothing be fetched.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("shiftbed.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    environment.filters |= {"ticked": ticked, "signed": signed}
    scripts = {"plotly": get_plotlyjs(), "own": _source("page.js")}
    return environment.get_template("page.html").render(
        scripts=scripts,
        hashes=[_hash(text) for text in scripts.values()],
        style=_source("page.css"),
        version=__version__,
        **content,
        data=finite(data),
    )


def signed(number: float) -> str:
    """A difference as tables print it, with a true minus; what rounds to nothing has none."""
    return f"{number:+z.1f}".replace("-", "−")


def ticked(text: str) -> Markup:
    """A sentence whose words between backticks are set as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else part for place, part in enumerate(parts)
    )


def _source(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """A script's hash, as a content security policy has it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def finite(value: Any) -> Any:
    """Data that JSON can hold: what is not a finite number is nothing."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
