"""Pictures: opening them, and where their patches lie."""

from __future__ import annotations

import base64
import io
from types import SimpleNamespace

import pytest

from whymatch.reading.pictures import boxes_of, open_picture, thumbnail

PIL = pytest.importorskip("PIL.Image")


def test_a_picture_is_opened_as_people_see_it(tmp_path):
    lying = PIL.new("RGBA", (40, 20), "red")
    turn = PIL.Exif()
    turn[274] = 6  # the note to turn it
    lying.convert("RGB").save(tmp_path / "lying.jpg", exif=turn)
    picture, name = open_picture(tmp_path / "lying.jpg")
    assert (picture.size, picture.mode, name) == ((20, 40), "RGB", "lying.jpg")
    picture, name = open_picture(lying)
    assert (picture.size, picture.mode, name) == ((40, 20), "RGB", "picture 40 × 20")


def test_what_is_no_picture_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no picture '.*none\.png'"):
        open_picture(tmp_path / "none.png")
    (tmp_path / "text.png").write_text("text")
    with pytest.raises(ValueError, match=r"text\.png' cannot be read as a picture"):
        open_picture(tmp_path / "text.png")


def test_a_thumbnail_is_small_and_knows_the_true_size():
    address, width, height = thumbnail(PIL.new("RGB", (800, 400), "red"), largest=100)
    assert (width, height) == (800, 400)
    kind, _, content = address.partition(",")
    assert kind == "data:image/jpeg;base64"
    assert PIL.open(io.BytesIO(base64.b64decode(content))).size == (100, 50)


@pytest.mark.parametrize(
    ("processor", "first", "last"),
    [
        ({"size": {"shortest_edge": 32}, "do_center_crop": True}, (16, 0, 32, 16), (64, 48, 80, 64)),
        ({"size": {"height": 32, "width": 32}}, (0, 0, 24, 16), (72, 48, 96, 64)),
        ({"do_resize": False, "do_center_crop": True}, (32, 16, 40, 24), (56, 40, 64, 48)),
        ({}, (0, 0, 24, 16), (72, 48, 96, 64)),
    ],
)
def test_patches_are_traced_back_through_scaling_and_cropping(processor, first, last):
    reader = SimpleNamespace(processor=SimpleNamespace(image_processor=SimpleNamespace(**processor)))
    boxes = boxes_of(reader, (96, 64), (32, 32), 8)
    assert len(boxes) == 16
    assert (boxes[0], boxes[-1]) == (first, last)
