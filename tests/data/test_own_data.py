"""Anyone's images: folders, manifests, packs, and everything that can be wrong with them."""

import fcntl
import json
import os
import shutil
import threading
import unicodedata
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.data import DATASETS, card, example_names, examples, load, writing
from shiftbed.data import pack as packing
from shiftbed.data.examples import Example, Listing, list_folder, list_manifest
from shiftbed.data.load import forget
from shiftbed.data.look import contact_sheet
from shiftbed.data.pack import RaggedImages, read_card, read_pack, write_pack
from shiftbed.data.prepare import _note_twelve_bits, prepare, raw_files
from shiftbed.errors import DataError, UnknownNameError
from tests.data.conftest import picture


def test_a_folder_becomes_a_dataset_that_every_command_finds(folder, root):
    made = prepare(str(folder))
    dataset = load("mine")
    assert dataset.card == made.card == card("mine")
    assert list(dataset.card.domains.items()) == [("<b>third", 12), ("größe", 12), ("site one", 12)]
    assert dataset.card.classes == ("cat", "dog & cow")
    for domain in dataset.domains:
        assert sorted(domain.labels) == [0] * 6 + [1] * 6
    assert not list(root.rglob("*.partial")) and not list(root.rglob("*.lock"))


def test_a_file_that_is_no_manifest_is_told_what_one_is(tmp_path, root):
    (tmp_path / "list.txt").write_text("a.png cat here")
    with pytest.raises(DataError, match=r"list.txt is a file; a dataset is a folder .*, or a manifest \(.csv, .jsonl"):
        prepare(str(tmp_path / "list.txt"))


def test_images_of_one_size_are_kept_and_others_reduced_to_288_but_never_enlarged(folder, root):
    prepare(str(folder))
    third, square, one = (domain.inputs for domain in load("mine").domains)
    assert isinstance(square, np.ndarray) and square.shape == (12, 64, 64, 3)
    assert one.shape == (12, 40, 60, 3), "smaller than 288: as it is"
    assert third.shape == (12, 360, 288, 3), "400×320 with 288 on the short side"
    image = Image.open(folder / "größe" / "cat" / "image 1.png")
    assert any(np.array_equal(np.asarray(image), packed) for packed in square), "lossless at its own size"


def test_original_sizes_are_kept_beside_ragged_images(folder, root):
    picture(100, 500, seed=1).save(folder / "größe" / "cat" / "wide.png")
    prepare(str(folder))
    images = load("mine")["größe"].inputs
    assert isinstance(images, RaggedImages) and len(images) == 13
    wide = next(i for i in range(13) if images[i].shape == (100, 500, 3))
    assert images.rows["original_width"][wide] == 500
    assert contact_sheet(load("mine"), root / "sheet.png").stat().st_size > 10_000


def test_reduction_is_lanczos(tmp_path, root):
    for domain, size in (("a", (400, 300)), ("b", (100, 100))):
        (tmp_path / "two" / domain / "x").mkdir(parents=True)
        for i in range(2):
            picture(*size, seed=i).save(tmp_path / "two" / domain / "x" / f"{i}.png")
    prepare(str(tmp_path / "two"), short_side=50)
    expected = Image.open(tmp_path / "two" / "a" / "x" / "0.png").resize((50, 67), Image.Resampling.LANCZOS)
    assert np.array_equal(load("two")["a"].inputs[0], np.asarray(expected))


def test_a_manifest_becomes_a_dataset(folder, root, tmp_path):
    listing = list_folder(folder)
    rows = [
        (os.path.relpath(one.path, tmp_path), one.label, one.domain, f"g{i % 5}")
        for i, one in enumerate(listing.examples)
    ]
    lines = ["path,class,domain,group", *(",".join(f'"{word}"' for word in row) for row in rows)]
    (tmp_path / "list.csv").write_text("\n".join(lines), encoding="utf-8")
    keys = ("path", "class", "domain", "group")
    (tmp_path / "list.jsonl").write_text("\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows))
    import duckdb

    source, target = tmp_path / "list.csv", tmp_path / "list.parquet"
    duckdb.connect().execute(f"copy (select * from read_csv('{source}')) to '{target}' (format parquet)")
    first = list_manifest(tmp_path / "list.csv")
    assert first == list_manifest(tmp_path / "list.jsonl") == list_manifest(tmp_path / "list.parquet")
    prepare(str(tmp_path / "list.csv"), rename="from list")
    dataset = load("from list")
    assert list(dataset.card.domains) == list(listing.domains)
    assert len(set(dataset.domains[0].groups)) == 5


def test_packing_does_not_depend_on_the_order_or_number_of_files_read_at_once(folder, root, monkeypatch):
    prepare(str(folder))
    first = {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()}
    shutil.rmtree(root)
    monkeypatch.setattr(packing, "BLOCK", 5)
    prepare(str(folder))
    assert {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()} == first


def test_interrupted_packing_continues(folder, root, monkeypatch):
    monkeypatch.setattr(packing, "BLOCK", 4)
    monkeypatch.setattr(packing, "SYNC_SECONDS", 0)
    expected = prepare(str(folder)).card
    whole = {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()}
    for stop in (4, 16, 36):
        shutil.rmtree(root)

        def interrupt(what, done, total, stop=stop):
            if what == "packing" and done >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prepare(str(folder), on_progress=interrupt)
        with pytest.raises(DataError, match="is not prepared"):
            load(str(folder))
        started = {}
        found = prepare(str(folder), on_progress=lambda what, done, total, s=started: s.setdefault(what, done))
        assert found.card == expected
        assert started["packing"] >= stop, "what was done is not done again"
        assert {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()} == whole


def test_changed_content_is_another_version_and_unchanged_content_is_not_packed_again(folder, root):
    first = prepare(str(folder)).card.version
    before = (root / "packs" / "mine" / "pack.json").stat().st_mtime_ns
    assert prepare(str(folder)).card.version == first
    assert (root / "packs" / "mine" / "pack.json").stat().st_mtime_ns == before
    picture(64, 64, seed=999).save(folder / "größe" / "cat" / "image 1.png")
    with pytest.warns(UserWarning, match="This replaces the 'mine' that was prepared before .36 images in .*--name"):
        assert prepare(str(folder)).card.version != first


def test_classes_that_a_domain_lacks_are_named(tmp_path, root):
    for place in ("a/x", "a/y", "b/x", "b/y", "c/x"):
        (tmp_path / "sites" / place).mkdir(parents=True)
        picture(8, 8, seed=sum(map(ord, place))).save(tmp_path / "sites" / place / "0.png")
    with pytest.warns(UserWarning, match="Not all domains have all classes: 'c' has no 'y'."):
        prepare(str(tmp_path / "sites"))


def test_names_are_composed_however_the_file_system_writes_them(tmp_path, root):
    for domain in (unicodedata.normalize("NFD", "Köln"), "Rom"):
        path = tmp_path / "sites" / domain / unicodedata.normalize("NFD", "Tür") / "a.png"
        path.parent.mkdir(parents=True)
        picture(8, 8, seed=len(domain)).save(path)
    made = prepare(str(tmp_path / "sites")).card
    assert [*made.domains] == ["Köln", "Rom"] and made.classes == ("Tür",)


def test_two_packs_at_once_on_one_folder(folder, root):
    inside, go = threading.Event(), threading.Event()

    def hold(what, done, total):
        if what == "packing":
            inside.set()
            go.wait(10)

    thread = threading.Thread(target=lambda: prepare(str(folder), on_progress=hold))
    thread.start()
    inside.wait(10)
    try:
        with pytest.raises(DataError, match="Another process is packing mine"):
            prepare(str(folder))
    finally:
        go.set()
        thread.join()
    assert len(load("mine").domains) == 3


def test_odd_images_are_packed_as_a_browser_shows_them(tmp_path, root):
    where = tmp_path / "odd" / "a" / "x"
    where.mkdir(parents=True)
    (tmp_path / "odd" / "b" / "x").mkdir(parents=True)
    picture(8, 8, seed=0).save(tmp_path / "odd" / "b" / "x" / "plain.png")
    grey16 = Image.fromarray((np.arange(64).reshape(8, 8) * 1000).astype(np.uint16))
    grey16.save(where / "1-sixteen.png")
    palette = picture(8, 8, seed=1).quantize(16)
    palette.save(where / "2-palette.png")
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(where / "3-animated.gif", save_all=True, append_images=frames[1:])
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(where / "4-clear.png")
    turned = picture(8, 8, seed=2)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(where / "5-turned.png", exif=exif)
    prepare(str(tmp_path / "odd"))
    sixteen, colours, animated, clear, upright = load("odd")["a"].inputs
    assert np.abs(sixteen[..., 0] - np.arange(64).reshape(8, 8) * 1000 / 257).max() <= 1
    assert np.array_equal(colours, np.asarray(palette.convert("RGB")))
    assert (animated == [255, 0, 0]).all(), "the first frame"
    assert (clear == 255).all()
    assert np.array_equal(upright, np.rot90(np.asarray(turned), -1))


def spoil(folder, name, content):
    (folder / "größe" / "cat" / name).write_bytes(content)


def test_damaged_images_are_listed_with_their_paths_and_can_be_left_out(folder, root):
    whole = (folder / "größe" / "cat" / "image 0.jpg").read_bytes()
    spoil(folder, "cut.jpg", whole[: len(whole) // 2])
    spoil(folder, "text.png", b"this is no image")
    picture(8, 8, seed=0).resize((1, 1)).save(folder / "größe" / "cat" / "dot.png")
    with pytest.raises(DataError, match="3 images cannot be packed") as caught:
        prepare(str(folder))
    assert all(name in str(caught.value) for name in ("cut.jpg", "text.png", "dot.png", "1×1", "--skip-corrupt"))
    with pytest.raises(DataError, match="not prepared"):
        load(str(folder))
    made = prepare(str(folder), skip_corrupt=True)
    assert {bad.path.name for bad in made.left_out} == {"cut.jpg", "text.png", "dot.png"}
    assert made.card.domains["größe"] == 12
    assert "36" not in made.card.summary and "39" not in made.card.summary, "the counts of its domains say how many"
    assert prepare(str(folder), skip_corrupt=True).left_out == made.left_out, "packed already, they are still missing"
    with pytest.raises(DataError, match="3 images cannot be packed"):
        prepare(str(folder))
    clean = [np.array(image) for image in load("mine")["größe"].inputs]
    for name in ("cut.jpg", "text.png", "dot.png"):
        (folder / "größe" / "cat" / name).unlink()
    prepare(str(folder))
    assert all(np.array_equal(a, b) for a, b in zip(clean, load("mine")["größe"].inputs, strict=True))


def test_a_damaged_image_does_not_change_the_size_of_the_others(tmp_path, root):
    for i in range(4):
        path = tmp_path / "even" / "ab"[i % 2] / "x" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(400, 300, seed=i).save(path)
    (tmp_path / "even" / "a" / "x" / "bad.png").write_bytes(b"no image")
    prepare(str(tmp_path / "even"), skip_corrupt=True)
    assert [domain.inputs.shape for domain in load("even").domains] == [(2, 400, 300, 3)] * 2


def test_a_domain_without_a_readable_image_is_refused(folder, root):
    for path in (folder / "größe").rglob("*.*"):
        path.write_bytes(b"no image")
    with pytest.raises(DataError, match="None of the images of domain 'größe' can be read"):
        prepare(str(folder), skip_corrupt=True)


@pytest.mark.parametrize("moment", ["while gaps are closed", "afterwards"])
def test_killed_while_damaged_images_are_left_out_it_starts_over_and_mixes_nothing(folder, root, monkeypatch, moment):
    (folder / "<b>third" / "cat" / "a.png").write_bytes(b"no image")  # the first, so that all others move
    prepare(str(folder), skip_corrupt=True)
    whole = {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()}
    shutil.rmtree(root)
    truncate = os.truncate

    def kill_before_truncation(file, size):
        if isinstance(file, Path):
            raise KeyboardInterrupt
        truncate(file, size)

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if moment == "afterwards":
            patch.setattr(packing, "_describe", kill)
        else:
            patch.setattr(packing.os, "truncate", kill_before_truncation)
        prepare(str(folder), skip_corrupt=True)
    prepare(str(folder), skip_corrupt=True)
    assert {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()} == whole


def test_a_disk_that_runs_full_is_one_sentence_and_what_is_whole_is_kept(folder, root, monkeypatch):
    monkeypatch.setattr(packing, "BLOCK", 4)
    monkeypatch.setattr(packing, "SYNC_SECONDS", 0)
    expected = prepare(str(folder)).card
    whole = {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()}
    shutil.rmtree(root)
    written, write = [], os.pwrite

    def write_until_full(file, content, offset):
        written.append(offset)  # in the end the system writes what still fits
        return write(file, content, offset) if len(written) <= 20 else memoryview(content).nbytes // 2

    with monkeypatch.context() as patch, pytest.raises(DataError, match=r"The disk of .*data is full; make room"):
        patch.setattr(packing.os, "pwrite", write_until_full)
        prepare(str(folder))
    with pytest.raises(DataError, match="is not prepared"):
        load(str(folder))
    started = {}
    assert prepare(str(folder), on_progress=lambda what, done, total: started.setdefault(what, done)).card == expected
    assert started["packing"] > 0, "what was done is not done again"
    assert {path.name: path.read_bytes() for path in (root / "packs" / "mine").iterdir()} == whole


def test_a_disk_that_runs_full_in_an_array_is_one_sentence_too(folder, root, monkeypatch):
    def save(path, array):  # as NumPy does, which gives no number of the error
        raise OSError(f"{len(array)} requested and 0 written")

    with monkeypatch.context() as patch, pytest.raises(DataError, match=r"The disk of .*data is full; make room"):
        patch.setattr(np, "save", save)
        prepare(str(folder))
    assert prepare(str(folder)).left_out == []


def test_files_that_cannot_be_opened_are_refused_as_damaged_ones_are(folder, root):
    (folder / "größe" / "cat" / "gone.jpg").symlink_to("nowhere")
    (folder / "site one" / "cat" / "gone too.jpg").symlink_to("gone too.jpg")
    (folder / "größe" / "cat" / "folder.jpg").mkdir()  # no file at all
    (folder / "größe" / "loop").symlink_to("loop")
    with pytest.raises(DataError, match=r"2 images cannot be packed \(.*gone too\.jpg"):
        prepare(str(folder))
    made = prepare(str(folder), skip_corrupt=True)
    assert {one.path.name for one in made.left_out} == {"gone.jpg", "gone too.jpg"}
    assert sum(made.card.domains.values()) == 36 and not made.duplicates


def test_one_class_alone_is_told_to_be_nothing_to_learn(folder, root):
    for domain in folder.iterdir():
        shutil.rmtree(domain / "dog & cow")
    with pytest.warns(UserWarning, match=r"of the one class 'cat', .* nothing to learn; .* domain/class/image"):
        prepare(str(folder))


def test_images_at_another_depth_are_not_dropped_without_a_word(folder, root):
    for place in (".", "größe", "größe/cat/more", "größe/cat/2021/january"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        picture(8, 8, seed=len(place)).save(folder / place / "stray.png")
        (folder / place / "Thumbs.db").write_bytes(b"")
        (folder / place / "._stray.png").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"Not used: 4 images at another depth .*, such as .*stray\.png"):
        made = prepare(str(folder))
    assert sum(made.card.domains.values()) == 36


def test_classes_that_differ_in_case_only_are_named(tmp_path, root):
    for site, label in (("a", "cat"), ("b", "cat"), ("c", "Cat"), ("d", "Cat"), ("a", "dog"), ("c", "dog")):
        (tmp_path / "mine" / site / label).mkdir(parents=True)
        for seed in range(2):
            picture(8, 8, seed=seed).save(tmp_path / "mine" / site / label / f"{seed}.png")
    with pytest.warns(UserWarning, match="Classes 'Cat' and 'cat' differ in upper and lower case only"):
        assert prepare(str(tmp_path / "mine")).card.classes == ("Cat", "cat", "dog")


def test_pictures_of_kinds_that_are_not_read_are_not_dropped_without_a_word(folder, root):
    for name in ("phone.HEIC", "scan.dcm", "._phone.heic", "notes.txt"):
        (folder / "größe" / "cat" / name).write_bytes(b"not read")
    with pytest.warns(UserWarning, match=r"Not used: 2 files of a kind that is not read, .*phone\.HEIC; save them as"):
        made = prepare(str(folder))
    assert sum(made.card.domains.values()) == 36
    (folder / "phone" / "cat").mkdir(parents=True)
    (folder / "phone" / "cat" / "1.heic").write_bytes(b"not read")
    with pytest.raises(
        DataError, match=r"'phone' .* has no images that are read, only .*phone/cat/1\.heic; save them as .jpg"
    ):
        prepare(str(folder))


def test_reading_shows_how_far_it_is(folder, root, monkeypatch):
    monkeypatch.setattr(examples, "SHOWN", 16)
    said = []
    prepare(str(folder), on_progress=lambda *words: said.append(words))
    assert said[:3] == [("reading", done, 36) for done in (16, 32, 36)]


def test_scans_are_looked_for_in_one_pass():
    class Counted(tuple):
        passes = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

    many = Counted(Example(Path(f"{domain}.png"), domain, "cat") for domain in "abc")
    Counted.passes = 0
    _note_twelve_bits(Listing(tuple("abc"), ("cat",), many))
    assert Counted.passes == 1


def test_scans_of_12_bits_in_16_are_said_to_be_nearly_black(folder, root):
    for name, most in (("whole", 65535), ("scan", 4095)):
        pixels = np.linspace(0, most, 64).astype(np.uint16).reshape(8, 8)
        Image.fromarray(pixels).save(folder / "größe" / "cat" / f"{name}.tif")
    with pytest.warns(UserWarning, match=r"16-bit images of 'größe' are nearly black, .*scan\.tif, .* is 4,095 of"):
        prepare(str(folder))


def test_an_image_that_a_manifest_lists_twice_is_refused(folder, root):
    rows = [f"größe/cat/image {i}.png,cat,größe,{group}" for i, group in ((1, "a"), (3, "b"), (5, "a"), (3, "c"))]
    (folder / "list.csv").write_text("\n".join(["path,class,domain,group", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match=r"Rows 2 and 4 of .*list\.csv list größe/cat/image 3\.png twice"):
        prepare(str(folder / "list.csv"))


def test_names_in_a_manifest_are_one_name_however_they_are_typed(folder, root):
    """A space after a comma, or accents apart from their letters, would divide a class or a domain in two."""
    apart = unicodedata.normalize("NFD", "größe")
    rows = [f"größe/cat/image {i}.png,{label},{domain}, g " for i, label, domain in
            ((1, "cat", "größe"), (3, " cat", apart), (5, "cat ", " größe"))]  # fmt: skip
    (folder / "list.csv").write_text("\n".join(["path,class,domain,group", *rows]), encoding="utf-8")
    listing = list_manifest(folder / "list.csv")
    assert (listing.domains, listing.classes) == (("größe",), ("cat",))
    assert {one.group for one in listing.examples} == {"g"}


def test_what_spreadsheets_add_to_a_manifest_is_no_part_of_it_and_columns_of_other_names_are_said(folder, root):
    rows = [f"größe/cat/image {i}.png,cat,größe,p{i},2020," for i in (1, 3)]
    text = "\r\n".join(["path, class ,domain, patient,year,", *rows, ",,,,,", ""])
    (folder / "list.csv").write_text(text, encoding="utf-8-sig", newline="")
    with pytest.warns(
        UserWarning, match=r"Not used: the columns patient, year of .*, such as a patient, is named group"
    ):
        assert len(list_manifest(folder / "list.csv").examples) == 2


def test_a_column_of_parts_does_not_divide_and_that_is_said(folder, root):
    rows = [f"{domain}/cat/image {i}.png,cat,{domain},{part}" for domain in ("größe", "site one")
            for i, part in ((1, "train"), (3, "test"))]  # fmt: skip
    (folder / "list.csv").write_text("\n".join(["path,class,domain,split", *rows]), encoding="utf-8")
    with pytest.warns(UserWarning, match="The column 'split' only tells equal files"):
        prepare(str(folder / "list.csv"))


def test_a_damaged_image_does_not_decide_which_hyperparameters_apply(tmp_path, root):
    for domain in "ab":
        (tmp_path / "small" / domain / "x").mkdir(parents=True)
        picture(28, 28, seed=ord(domain)).save(tmp_path / "small" / domain / "x" / "1.png")
    (tmp_path / "small" / "a" / "x" / "0.png").write_bytes(b"no image")
    assert prepare(str(tmp_path / "small"), skip_corrupt=True).card.size_class == "small"


@pytest.mark.parametrize("side", [1, 0, -5])
def test_no_image_is_reduced_to_nothing(folder, root, side):
    with pytest.raises(DataError, match=f"reduced to a short side of {side}; 2 pixels are the least"):
        prepare(str(folder), short_side=side)


def test_a_dataset_replaces_the_one_before_only_when_it_is_whole(folder, root, monkeypatch):
    """However it ends, the name means one of the two, or for a moment none: never half of one."""
    before = prepare(str(folder)).card
    picture(64, 64, seed=999).save(folder / "größe" / "cat" / "image 1.png")
    remove = shutil.rmtree

    def die_half_way(path, **how):
        if Path(path).exists():
            (Path(path) / "pixels.u8").unlink()
            raise KeyboardInterrupt
        remove(path, **how)

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="replaces"), pytest.raises(KeyboardInterrupt):
        patch.setattr(writing.shutil, "rmtree", die_half_way)
        prepare(str(folder))
    forget()
    assert card("mine").version != before.version and load("mine")["größe"].inputs.shape == (12, 64, 64, 3)
    prepare(str(folder))
    picture(64, 64, seed=998).save(folder / "größe" / "cat" / "image 1.png")
    with pytest.warns(UserWarning, match="replaces"):
        prepare(str(folder))
    assert [path.name for path in (root / "packs").iterdir()] == ["mine"]


def test_a_lock_that_its_holder_removed_holds_nobody_off_and_nobody_in(tmp_path):
    """Who opened the file before it was removed may lock it, but the next one's lock is another file."""
    lock = tmp_path / "pack.lock"
    flock = fcntl.flock

    def removed_meanwhile(file, how):
        flock(file, how)
        lock.unlink()
        lock.write_text("")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(DataError, match="Another process is packing it; wait"):
        patch.setattr(writing.fcntl, "flock", removed_meanwhile)
        with writing.alone(tmp_path / "pack", "packing it"):
            pass
    with writing.alone(tmp_path / "pack", "packing it"):
        pass
    assert not lock.exists()


def test_two_that_fetch_one_dataset_do_not_write_into_one_file(root):
    busy = pytest.raises(DataError, match="Another process is fetching PACS; wait for it")
    with writing.alone(root / "raw" / "PACS", "fetching PACS"), busy:
        raw_files(card("PACS"))


def test_a_known_dataset_is_the_one_that_is_prepared_in_whatever_spelling(folder, root):
    """The card of NICO++-public has no counts; those of the pack are the ones to divide by."""
    about = DATASETS["NICO++-public"].card
    examples = [Example(folder / "größe" / "cat" / "image 1.png", name, "bear") for name in about.domains]
    write_pack(Listing.of(examples, tuple(about.domains), about.classes), about, root / "packs" / about.name)
    forget()
    assert card("nico++-PUBLIC") == card("NICO++-public") and set(card("nico++-PUBLIC").domains.values()) == {1}
    assert example_names("nico++-public", "rock") == example_names("NICO++-public", "rock") == ["image 1.png"]


def test_equal_files_in_two_domains_are_reported(folder, root):
    shutil.copy(folder / "größe" / "cat" / "image 1.png", folder / "site one" / "cat" / "copy.png")
    made = prepare(str(folder))
    assert [{one.domain for one in same} for same in made.duplicates] == [{"größe", "site one"}]


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (
            lambda folder: shutil.rmtree(folder / "größe") or (folder / "größe" / "cat").mkdir(parents=True),
            "'größe' in .* has no images",
        ),
        (
            lambda folder: [
                image.rename(folder / "größe" / f"{n}{image.suffix}")
                for n, image in enumerate(sorted((folder / "größe").glob("*/*")))
            ],
            r"'größe' in .* has \d+ images in no class, such as .*größe/.*; they belong in .*größe/CLASS/\.",
        ),
        (
            lambda folder: [
                (folder / "größe").rename(folder / "train"),
                (folder / "größe").mkdir(),
                (folder / "train").rename(folder / "größe" / "train"),
            ],
            r"'größe' in .* has \d+ images in folders that are too deep, such as .*größe/train/.*; they belong in "
            r".*größe/CLASS/\.",
        ),
        (
            lambda folder: (folder / "größe" / "dog & cow").rename(folder / "größe" / "dogs"),
            "Class 'dogs' is in domain 'größe' only",
        ),
        (lambda folder: [shutil.rmtree(path) for path in folder.iterdir()], "has no folders in it"),
    ],
)
def test_folders_that_are_no_dataset(folder, root, break_it, words):
    break_it(folder)
    with pytest.raises(DataError, match=words):
        prepare(str(folder))
    assert not root.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,class\na.png,x", "has no column 'domain'; it needs path, class, domain and has path, class"),
        ("path,class,domain\nnone.png,x,y", "Row 1 of .* names none.png, which is not a file"),
        (f"path,class,domain\n{'x' * 5000}.png,x,y", "Row 1 of .* names xxx.*, which is not a file"),
        ('path,class,domain\n"' + "x" * 200_000, "list.csv cannot be read: field larger than"),
        ("path,class,domain\n,x,y", r"Row 1 of .* has no path\."),
        ("path,class,domain\n,,\n\n,x,y", r"Row 2 of .* has no path\."),
        (
            "path;class;domain\na.png;x;y",
            "needs path, class, domain and has path;class;domain; separate cells with comm",
        ),
        ("path,class\na.png,x,y", "has no column 'domain'; it needs path, class, domain and has path, class"),
        ("path,class,domain\nlist.csv,x,y,z", "Row 1 of .* has more cells than columns; put cells with commas in quo"),
        ("path,class,domain\na.png,x,  ", r"Row 1 of .* has no domain\."),
        ("path,class,domain\na.png,,y", "Row 1 of .* has no class; leave images without labels out, .* with --on"),
        ("path,class,domain\n", "lists no images"),
        ("path,class,domain, class\na.png,x,y,z", "list.csv cannot be read: it has two columns named class; rename"),
        ("path,class,domain\nlist.csv,x,y\nlist.csv,z,w", "Class 'z' is in domain 'w' only"),
    ],
)
def test_manifests_that_are_none(tmp_path, root, text, words):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        prepare(str(tmp_path / "list.csv"))


def test_names_that_are_no_dataset(folder, root):
    with pytest.raises(UnknownNameError, match="Did you mean EmojiStyles"):
        prepare("EmojiStyle")
    with pytest.raises(UnknownNameError, match="Did you mean EmojiStyles"):
        load("EmojiStyle")
    with pytest.raises(DataError, match="There is no folder or manifest my/images"):
        prepare("my/images")
    with pytest.raises(DataError, match="There is no archive or folder missing"):
        prepare("PACS", Path("missing"))
    with pytest.raises(DataError, match="is not prepared; run `shiftbed prepare"):
        load(str(folder))
    with pytest.raises(DataError, match="is built in and needs no preparation"):
        prepare("EmojiStyles")
    for spelling in ("EmojiStyles", "emojistyles"):
        with pytest.raises(DataError, match="is the name of a known dataset; give yours another"):
            prepare(str(folder), rename=spelling)
    with pytest.raises(DataError, match=r"'mine\.partial' cannot be the name of a dataset"):
        prepare(str(folder), rename="mine.partial")


def test_a_disk_that_is_too_small_is_noticed_before_work_is_done(folder, root, monkeypatch):
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(DataError, match=r"The disk is too small: the pack needs [\d.]+ MB and .* has 0\.0 MB free"):
        prepare(str(folder))


def test_a_pack_of_a_newer_shiftbed_is_refused(folder, root):
    prepare(str(folder))
    path = root / "packs" / "mine" / "pack.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(DataError, match="newer shiftbed"):
        read_pack(path.parent)


@pytest.mark.parametrize(
    ("name", "size"), [("pixels.u8", 100), ("pixels.u8", 0), ("index.npy", 200), ("labels.npy", None), ("pack.json", 9)]
)
def test_a_pack_that_is_not_whole_says_so_and_is_made_anew(folder, root, name, size):
    version = prepare(str(folder)).card.version
    pack = root / "packs" / "mine"
    pixels = (pack / "pixels.u8").read_bytes()
    if size is None:
        (pack / name).unlink()
    else:
        (pack / name).write_bytes((pack / name).read_bytes()[:size])
    with pytest.raises(DataError, match=r"mine is not whole .*copy it again, or make it again"):
        read_pack(pack)
    assert prepare(str(folder)).card.version == version
    assert len(read_pack(pack).domains) == len(read_card(pack).domains)
    assert (pack / "pixels.u8").read_bytes() == pixels


def test_a_model_trains_on_own_images(folder, root, tmp_path):
    import shiftbed

    prepare(str(folder))
    job = shiftbed.train("mine", "ERM", "größe", tmp_path / "run", steps=2, overrides={"batch_size": 4})
    assert job is not None and job.rows[-1]["splits"]["größe/in"]["count"] == 10


def test_write_pack_is_given_what_it_describes(folder, root):
    listing = list_folder(folder)
    prepare(str(folder))
    assert write_pack(listing, card("mine"), root / "again") == []
    assert (root / "again" / "pixels.u8").read_bytes() == (root / "packs" / "mine" / "pixels.u8").read_bytes()


def test_a_repaired_image_is_read_again_and_so_is_one_that_changed(folder, root):
    broken, other = folder / "größe" / "cat" / "image 0.jpg", folder / "größe" / "cat" / "image 1.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="1 image cannot be packed"):
        prepare(str(folder))
    broken.write_bytes(whole)
    Image.new("RGB", (64, 64)).save(other)
    prepare(str(folder))
    images, names = load("mine")["größe"].inputs, packing.file_names(root / "packs" / "mine")["größe"]
    place = names.index("größe/cat/image 1.png")
    assert images[place].max() == 0, "what the file is now"


def test_another_size_is_another_version_and_packed_anew(folder, root):
    whole = prepare(str(folder)).card
    small = prepare(str(folder), short_side=32).card
    assert small.version == f"{whole.version}-32px" and load("mine")["größe"].inputs.shape[1:3] == (32, 32)
    assert prepare(str(folder), size_class="small").card.size_class == "small"
    assert prepare(str(folder), size_class="large").card.size_class == "large"
    with pytest.raises(DataError, match="There is no size class 'medium'; choose small or large"):
        prepare(str(folder), size_class="medium")


def test_files_that_have_other_names_now_are_called_by_them(folder, root):
    version = prepare(str(folder)).card.version
    before = folder / "größe" / "cat" / "image 5.png"
    before.rename(before.with_name("image 5 of May.png"))
    assert prepare(str(folder)).card.version == version, "their order and content are the same"
    assert "größe/cat/image 5 of May.png" in example_names("mine", "größe")


def test_images_without_a_group_are_groups_of_their_own(folder, root):
    files = [(domain, label, f"{domain}/{label}/image {i}.png") for domain in ("größe", "site one")
             for label in ("cat", "dog & cow") for i in (1, 3, 5)]  # fmt: skip
    rows = [{"path": path, "class": label, "domain": domain} for domain, label, path in files]
    rows[0]["group"] = rows[1]["group"] = "both"
    (folder / "mine.JSONL").write_text("\n".join(json.dumps(row) for row in rows))
    prepare(str(folder / "mine.JSONL"), rename="grouped")
    groups = np.concatenate([np.asarray(domain.groups) for domain in load("grouped").domains])
    assert len(np.unique(groups)) == len(rows) - 1 and groups[0] == groups[1]


def test_a_mark_that_some_editors_begin_files_with_is_no_part_of_a_manifest(folder, root):
    (folder / "list.jsonl").write_bytes(
        b"\xef\xbb\xbf" + json.dumps({"path": "größe/cat/image 1.png", "class": "cat", "domain": "größe"}).encode()
    )
    assert len(list_manifest(folder / "list.jsonl").examples) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"PAR1 is not all", "cannot be read"),
        (
            "a.csv",
            "path,class,domain\nK\u00f6ln.png,x,y".encode("latin-1"),
            "is not in UTF-8; save it as UTF-8",
        ),
        ("a.csv", "path,class,domain\n".encode("utf-16"), "save it as UTF-8"),
        ("a.jsonl", b'["path", "class"]', "Row 1 of .* is no object of path, class and domain"),
    ],
)
def test_a_damaged_manifest_is_one_sentence(tmp_path, root, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        prepare(str(tmp_path / name))


def test_all_that_was_left_out_is_listed(folder, root):
    for i in (0, 2, 4):
        (folder / "größe" / "cat" / f"image {i}.jpg").write_bytes(b"no image")
    made = prepare(str(folder), skip_corrupt=True)
    assert len((root / "packs" / "mine" / packing.REFUSED).read_text().splitlines()) == len(made.left_out) == 3


def test_the_archive_that_is_given_is_the_one_that_is_read(tmp_path, root):
    about = card("PACS")
    for name, inside in (("one", "first"), ("two", "second")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as made:
            made.writestr("./", "")
            made.writestr(f"{inside}.txt", inside)
    for name, inside in (("one", "first"), ("two", "second"), ("one", "first")):
        files = [path.stem for path in raw_files(about, tmp_path / f"{name}.zip").rglob("*.txt")]
        assert files == [inside]
    (tmp_path / "plain.txt").write_text("no archive")
    with pytest.raises(DataError, match=r"plain\.txt is no archive that can be unpacked; give the folder"):
        raw_files(about, tmp_path / "plain.txt")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("folder", {"source": "elsewhere"}, "data of your own, and --from says where a known dataset's are"),
        ("PACS", {"rename": "mine"}, "--name is for data of your own; leave it out, PACS is a known dataset"),
        ("PACS", {"size_class": "small"}, "--size-class is for data of your own"),
    ],
)
def test_options_of_prepare_that_would_do_nothing_are_refused(folder, root, name, options, message):
    with pytest.raises(DataError, match=message):
        prepare(str(folder) if name == "folder" else name, **options)
    assert not root.exists() or not list(root.rglob("pack.json"))
