"""A sheet of pictures as one small JPEG.

Right answers have a green frame with a tick, wrong ones a dashed red frame with a cross. A sheet never exceeds `_LIMIT`
bytes: quality, then size is reduced until it fits.
"""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from trainables.data.base import Pictures
from trainables.evidence.record import Sheet, Tile

_LIMIT = 60_000  # bytes
# Multiples of 8, the side of a JPEG's blocks, so that a frame does not blur its picture.
SIDE, FRAME, GAP = 64, 4, 8
_TEXT = 24  # height of the two lines below a picture
HEADER = 16
CELL = SIDE + 2 * FRAME
_GREEN, _RED, _GREY = (0, 128, 60), (200, 30, 20), (150, 158, 168)
INK, PAPER = (23, 32, 42), (255, 255, 255)
_DASH = 9
_QUALITIES = (75, 60, 45, 30)


def _tile_corner(row: int, column: int) -> tuple[int, int]:
    """Return left and top of a tile's frame in pixels."""
    return GAP + column * (CELL + GAP), HEADER + GAP + row * (CELL + _TEXT + GAP)


def draw_sheet(sheet: Sheet) -> bytes:
    """Return the sheet as a JPEG of at most _LIMIT bytes. Raise ValueError for a sheet read from disk."""
    if sheet.pictures is None:
        raise ValueError("a sheet without its pictures cannot be drawn")
    columns = max((len(row) for row in sheet.rows), default=1)
    width, _ = _tile_corner(0, columns)
    _, height = _tile_corner(len(sheet.rows), 0)
    canvas = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(canvas)
    for column, title in sheet.titles:
        pen.text((_tile_corner(0, column)[0], GAP // 2), title, fill=INK, font=typeface(13))
    for row, tiles in enumerate(sheet.rows):
        for column, tile in enumerate(tiles):
            if tile is not None:
                _draw_tile(canvas, pen, tile, sheet.pictures, _tile_corner(row, column))
    return within_limit(canvas)


def crop_rows(data: bytes, rows: Sequence[int], *, of: int, columns: int) -> bytes:
    """Return a JPEG with the titles and some rows of a drawn sheet of `of` rows and `columns` columns."""
    drawn = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = _tile_corner(of, columns)[0], _tile_corner(of, 0)[1]
    drawn = drawn.resize((width, height), Image.Resampling.LANCZOS) if drawn.size != (width, height) else drawn
    first, pitch = HEADER + GAP, CELL + _TEXT + GAP
    canvas = Image.new("RGB", (width, first + pitch * len(rows)), PAPER)
    canvas.paste(drawn.crop((0, 0, width, first)), (0, 0))
    for position, row in enumerate(rows):
        canvas.paste(
            drawn.crop((0, first + pitch * row, width, first + pitch * (row + 1))), (0, first + pitch * position)
        )
    return within_limit(canvas)


def _draw_tile(
    canvas: Image.Image, pen: ImageDraw.ImageDraw, tile: Tile, pictures: Pictures, corner: tuple[int, int]
) -> None:
    left, top = corner
    picture = thumbnail(np.asarray(pictures.images[tile.picture]))
    inner = left + FRAME + (SIDE - picture.width) // 2, top + FRAME + (SIDE - picture.height) // 2
    canvas.paste(picture, inner)
    _frame(pen, left, top, tile.right)
    below = top + CELL + 2
    pen.text((left, below), _shorten_to_fit(_tile_text(tile)), fill=INK, font=typeface(10))
    if tile.similarity is not None:
        pen.text((left, below + 11), f"cos {tile.similarity:.2f}", fill=INK, font=typeface(10))


def thumbnail(pixels: NDArray[np.uint8]) -> Image.Image:
    """Fit a stored picture (H, W, C) into SIDE x SIDE."""
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    scale = SIDE / max(picture.size)
    width, height = (max(1, round(scale * side)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def _frame(pen: ImageDraw.ImageDraw, left: int, top: int, right: bool | None) -> None:
    """Draw a solid green frame with a tick, a dashed red one with a cross, or a thin grey one for a query."""
    last = CELL - 1
    if right is None:
        pen.rectangle((left + 2, top + 2, left + last - 2, top + last - 2), outline=_GREY, width=1)
        return
    if right:
        pen.rectangle((left, top, left + last, top + last), outline=_GREEN, width=FRAME)
    else:
        for start in range(0, CELL, 2 * _DASH):
            stop = min(start + _DASH, CELL) - 1
            for near in (0, CELL - FRAME):
                pen.rectangle((left + start, top + near, left + stop, top + near + FRAME - 1), fill=_RED)
                pen.rectangle((left + near, top + start, left + near + FRAME - 1, top + stop), fill=_RED)
    x, y, size = left + last - 15, top, 15
    pen.rectangle((x, y, x + size, y + size), fill=_GREEN if right else _RED)
    marks = (
        [(x + 3, y + 8, x + 6, y + 12), (x + 6, y + 12, x + 12, y + 3)]
        if right
        else [(x + 4, y + 4, x + 11, y + 11), (x + 4, y + 11, x + 11, y + 4)]
    )
    for mark in marks:
        pen.line(mark, fill=PAPER, width=2)


def _tile_text(tile: Tile) -> str:
    """Return the ASCII characters of the class name, or the picture's index if there are none."""
    text = "".join(letter for letter in tile.name if " " <= letter <= "~").strip()
    return text or f"picture {tile.picture}"


def _shorten_to_fit(text: str) -> str:
    font = typeface(10)
    while len(text) > 1 and font.getlength(text) > CELL:
        text = text[:-2] + "."
    return text


def typeface(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's default font; without FreeType it has one size."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError, OSError):
        return ImageFont.load_default()


def within_limit(canvas: Image.Image) -> bytes:
    """Return a JPEG of at most _LIMIT bytes, at the best quality that fits, if necessary in a smaller size."""
    while True:
        for quality in _QUALITIES:
            data = io.BytesIO()
            canvas.save(data, "JPEG", quality=quality, subsampling=0, optimize=True)
            if data.tell() <= _LIMIT:
                return data.getvalue()
        canvas = canvas.resize((canvas.width * 3 // 4, canvas.height * 3 // 4), Image.Resampling.LANCZOS)
