"""Pictures: opening them, and where their patches lie."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

Box: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom, in pixels of the picture as it was given
Image: TypeAlias = tuple[str, int, int]  # a small copy as a data: address; width and height of the picture itself


def open_picture(value: Any) -> tuple[Any, str]:
    """Open a picture: return it as a Pillow image in RGB, with its name."""
    try:
        from PIL import Image as Pillow
        from PIL import ImageOps, UnidentifiedImageError
    except ImportError:
        raise ImportError("pictures need Pillow: pip install pillow") from None

    if isinstance(value, Pillow.Image):
        name = getattr(value, "filename", "") or f"picture {value.width} × {value.height}"
        return value.convert("RGB"), os.path.basename(name)
    path = os.fspath(value)
    try:
        with Pillow.open(path) as picture:
            # Cameras write pictures lying down, with a note to turn them.
            return ImageOps.exif_transpose(picture).convert("RGB"), os.path.basename(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no picture {path!r}") from None
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path!r} cannot be read as a picture: {error}") from None


def thumbnail(picture: Any, largest: int = 384) -> Image:
    """Shrink a picture to the size at which views show it."""
    small = picture.copy()
    small.thumbnail((largest, largest))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode(), picture.width, picture.height


def boxes_of(reader: Any, size: tuple[int, int], seen: Sequence[int], patch: int) -> tuple[Box, ...]:
    """Return the boxes of the patches, row by row, in a picture of ``size`` (width, height).

    Processors scale a picture, and some cut out its middle; the model sees ``seen`` (height, width) pixels of the
    result. Each patch is traced back through both.
    """
    width, height = size
    high, wide = (int(n) for n in seen)
    processor = getattr(reader, "processor", None)
    processor = getattr(processor, "image_processor", processor)
    wanted = dict(getattr(processor, "size", None) or {})
    if getattr(processor, "do_resize", True) and "shortest_edge" in wanted:
        scale = wanted["shortest_edge"] / min(width, height)
        scaled = (width * scale, height * scale)
    elif getattr(processor, "do_resize", True) and "height" in wanted:
        scaled = (float(wanted["width"]), float(wanted["height"]))
    else:
        scaled = (float(wide), float(high)) if not getattr(processor, "do_center_crop", False) else (width, height)
    left, top = (scaled[0] - wide) / 2, (scaled[1] - high) / 2
    across, down = width / scaled[0], height / scaled[1]

    def box(row: int, column: int) -> Box:
        edges = (left + column * patch, top + row * patch, left + (column + 1) * patch, top + (row + 1) * patch)
        return (
            round(min(max(edges[0] * across, 0), width)),
            round(min(max(edges[1] * down, 0), height)),
            round(min(max(edges[2] * across, 0), width)),
            round(min(max(edges[3] * down, 0), height)),
        )

    return tuple(box(row, column) for row in range(high // patch) for column in range(wide // patch))
