"""EmojiStyles: the same 644 emoji in seven drawing styles, a real style shift that fits in the package.

`scripts/build_emoji_styles.py` makes the packed file from the published drawings; NOTICE credits them.
"""

from importlib.resources import files

import numpy as np

from shiftbed.data.dataset import Card, Domain, register

EMOJI = 644
STYLES = ("noto", "noto-v1", "twemoji", "fluent-flat", "fluent-contrast", "emojione", "emojione-mono")


@register(
    Card(
        name="EmojiStyles",
        version=1,
        summary="644 emoji of 11 classes, drawn in seven styles, two of them black and white",
        domains=dict.fromkeys(STYLES, EMOJI),
        classes=(
            *("animal", "plant", "food", "face", "hand", "vehicle"),
            *("building", "clothing", "tool", "sky", "sport"),
        ),
        input_shape=(3, 64, 64),
        size_class="small",
        shift="diversity",
        licence="Apache-2.0, MIT and CC-BY-4.0 (see NOTICE)",
        source="Noto, Noto v1, Twemoji, Fluent Emoji, EmojiOne; classes from Emojibase",
        citation="The drawings' authors, as NOTICE lists them",
    )
)
def emoji_styles() -> list[Domain]:
    """One domain a style; `groups` is the emoji's identity, which every style shares."""
    with (files("shiftbed.data") / "emoji_styles.npz").open("rb") as file, np.load(file) as packed:
        pixels, labels = packed["x"], packed["label"].astype(np.int64)
        styles = [str(style) for style in packed["styles"]]
    return [Domain(style, pixels[styles.index(style)], labels, np.arange(EMOJI)) for style in STYLES]
