"""Images as everything here sees them: packed, or given to a model as a file or a picture, they are read in one way."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from shiftbed.errors import DataError, plural

ORIENTATION = 0x0112  # the EXIF tag that says how a camera was held
SHOWN = 5  # images that cannot be read are named
SIDEWAYS = range(5, 9)  # its values for images that are stored on their side


@dataclass(frozen=True)
class Refused:
    """An image that cannot be read, and why."""

    path: Path
    why: str


def image_size(path: Path) -> tuple[int, int] | Refused:
    """Height and width from the file's header, as the image will be seen."""
    try:
        with Image.open(path) as image:
            sideways = image.getexif().get(ORIENTATION) in SIDEWAYS
            if sideways and image.format == "TIFF":
                image.load()  # Pillow turns these itself, at the latest now
            width, height = image.size
            if sideways and image.format != "TIFF":
                width, height = height, width
    except Exception as error:  # what Pillow's readers raise of a damaged file is not a closed list
        return Refused(path, f"not a readable image ({error})")
    if min(width, height) < 2:
        return Refused(path, f"an image of {width}×{height} pixels")
    return height, width


def readable(paths: Sequence[Path], skip_corrupt: bool) -> list[Path]:
    """Image files that can be read.

    Args:
        paths: The files.
        skip_corrupt: Leave out those that cannot, for which each is decoded. Without it only headers are looked at.

    Raises:
        DataError: Some cannot be read, and are not to be left out; or none is left.
    """
    sizes = {path: image_size(path) for path in paths}
    refused = [one for one in sizes.values() if isinstance(one, Refused)]
    if refused and not skip_corrupt:
        shown = "; ".join(f"{one.path}: {one.why}" for one in refused[:SHOWN])
        more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        raise DataError(
            f"{plural(len(refused), 'image')} cannot be read ({shown}{more}); repair or remove what is damaged, or "
            "--skip-corrupt."
        )
    whole = [path for path, size in sizes.items() if not isinstance(size, Refused)]
    if skip_corrupt:
        whole = [path for path in whole if not isinstance(read_image(path), Refused)]
    if not whole:
        raise DataError(f"None of {len(paths)} images can be read, such as {paths[0]}; name another folder.")
    return whole


def read_image(path: Path) -> np.ndarray | Refused:
    """An image as uint8 H×W×3 of its own size, with the pixels that a pack would have."""
    size = image_size(path)
    return size if isinstance(size, Refused) else decode(path, *size)


def decode(path: Path, height: int, width: int) -> np.ndarray | Refused:
    """An image as uint8 H×W×3 of the given size; the first frame of an animation, upright, 16 bits scaled to 8."""
    try:
        with Image.open(path) as opened:
            image = decode_image(opened)
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.LANCZOS)
            return np.asarray(image)
    except Exception as error:
        return Refused(path, f"a damaged image ({error})")


def decode_image(opened: Image.Image) -> Image.Image:
    """A picture in RGB, as a browser shows it: upright, on white where it is transparent, 16 bits scaled to 8.

    Raises:
        Exception: Its file is damaged; which error that is, is Pillow's choice.
    """
    sixteen_bits = _has_16_bits(opened)
    image = ImageOps.exif_transpose(opened)  # first: what changes the mode may lose the orientation
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image, sixteen_bits)
    elif "transparency" in image.info:  # one colour of it is transparent, or one entry of its palette
        image = image.convert("RGBA")
    if image.mode in ("RGBA", "LA"):
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def brightest_of_16_bits(path: Path) -> int | None:
    """The greatest value in an image of 16 bits; None of others, and of what cannot be read."""
    try:
        with Image.open(path) as opened:
            return int(np.asarray(opened).max()) if _has_16_bits(opened) else None
    except Exception:  # whatever Pillow says of a damaged file; packing refuses it by name
        return None


def _has_16_bits(opened: Image.Image) -> bool:
    # PNG and PGM hold no whole numbers but of 16 bits, whatever mode a version of Pillow opens them in.
    return opened.mode.startswith("I;16") or (opened.mode == "I" and opened.format in ("PNG", "PPM"))


def _eight_bits(image: Image.Image, sixteen_bits: bool) -> Image.Image:
    """Grey in 8 bits; of numbers that may have any range, only those that fit into 8 bits are taken to be such.

    Fractions up to 1 are shares of white, as programs that write floats have them.
    """
    grey = np.asarray(image, dtype=np.float64)
    if image.mode == "F" and grey.max() <= 1:
        grey = grey * 255
    scaled = grey / 257 if sixteen_bits or grey.max() > 255 else grey
    return Image.fromarray(scaled.clip(0, 255).astype(np.uint8))
