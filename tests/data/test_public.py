"""The public datasets: their cards, and their builders on made archives of the published layout."""

import csv
import json
import shutil
import warnings
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shiftbed.data import card, load
from shiftbed.data import download as downloading
from shiftbed.data.dataset import DATASETS
from shiftbed.data.examples import walk_images
from shiftbed.data.finding import find_folders
from shiftbed.data.load import forget
from shiftbed.data.look import contact_sheet
from shiftbed.data.prepare import prepare
from shiftbed.data.public import make_entry
from shiftbed.errors import DataError
from tests.data.made_archives import DESCRIPTIONS, MAKERS, made_dataset, picture, warehouse_sets
from tests.data.test_download import Server

REAL_PACS = Path(__file__).parents[3] / "shared" / "data" / "pacs_128px_q90.npz"
TOTALS = {
    **{"VLCS": 10_729, "PACS": 9_991, "OfficeHome": 15_588, "DomainNet": 586_575, "Camelyon17": 455_954},
    **{"TerraIncognita": 24_788, "TerraIncognita-24330": 24_330, "NICO++": 164_061, "NICO": 4_080},
    **{"CelebA": 2 * 24_266 + 1_448, "FMoW": 141_696, "CINIC-10": 270_000},
}


@pytest.fixture(autouse=True)
def registered_datasets_stay_as_they_are():
    before = {name: DATASETS[name] for name in DATASETS}
    yield
    DATASETS._entries.clear()
    DATASETS._entries.update(before)


@pytest.fixture(scope="module")
def server():
    """One for all: to stop a server takes half a second."""
    contents: dict[str, bytes] = {}
    with Server(contents) as server:
        server.files = contents
        yield server


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(downloading.time, "sleep", lambda seconds: None)


def entry_as_made(name, domains, **fields):
    """The dataset's own card and builder, but for the counts."""
    described = DESCRIPTIONS[name]
    return make_entry(described | {"domains": {domain: domains[domain] for domain in described["domains"]}} | fields)


def unpacked(name, folder: Path, only: str = "") -> Path:
    """The made files, or those of the archives whose name starts so."""
    for archive, members in made_dataset(name).members.items():
        for member, content in members.items() if archive.startswith(only) else ():
            path = folder / archive.split(".")[0] / member
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return folder


def read(name, folder, domains=None):
    return entry_as_made(name, domains or made_dataset(name).domains()).read(folder)


def test_every_card_has_a_made_archive():
    assert set(DESCRIPTIONS) == set(MAKERS)
    assert {name for name in MAKERS if DATASETS[name].card.ran_on != "made"} == {"PACS"}


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_an_archive_in_the_published_layout_becomes_a_pack(name, root, tmp_path, server):
    made = made_dataset(name)
    archives = made.archives()
    server.files.update({f"/{name}/{file}": content for file, content in archives.items()})
    server.asked, server.drops = [], 2
    fetched = [{"file": file, "mirrors": [f"{server.address}/{name}/{file}"]} for file in archives]
    DATASETS.add(name, entry_as_made(name, made.domains(), archives=fetched))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is superseded by ")
        prepared = prepare(name)
    assert len(server.asked) == len(archives) + 2, "the connection broke twice"
    assert prepared.left_out == []

    dataset = load(name)
    card = DESCRIPTIONS[name]
    assert [domain.name for domain in dataset.domains] == list(card["domains"]), "in the card's order"
    for domain in dataset.domains:
        found = Counter(card["classes"][label] for label in domain.labels)
        assert found == Counter(made.counts[domain.name]), domain.name
    assert Image.open(contact_sheet(dataset, tmp_path / "sheet.png")).size[0] > 100


def test_reduced_images_are_another_version_of_another_shape_and_replacing_is_said(root, tmp_path):
    folder = unpacked("Camelyon17", tmp_path)
    DATASETS.add("Camelyon17", entry_as_made("Camelyon17", made_dataset("Camelyon17").domains()))
    prepare("Camelyon17", folder)
    with pytest.warns(UserWarning, match="This replaces the 'Camelyon17' that was prepared before as version 1"):
        prepare("Camelyon17", folder, short_side=8)
    small = load("Camelyon17")
    assert small.card.version == "1-8px" and small.domains[0].inputs.shape[1:3] == (8, 8)
    assert small.card.input_shape == (3, 8, 8)


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_counts_add_up_to_the_papers_totals(name, total):
    assert sum(DATASETS[name].card.domains.values()) == total


@pytest.mark.parametrize("name", list(DATASETS))
def test_a_card_is_consistent(name):
    card = DATASETS[name].card
    assert len(set(card.classes)) == len(card.classes)
    assert {domain for cluster in card.clusters.values() for domain in cluster} <= set(card.domains)
    for grouping in card.groupings.values():
        assert sorted(domain for group in grouping for domain in group) == sorted(card.domains)
    for split in card.splits.values():
        named = (*split.train, *split.validation, *split.test)
        assert len(set(named)) == len(named) and set(named) <= set(card.domains)
    grouped = [label for group in card.hierarchy.values() for label in group]
    assert not grouped or sorted(grouped) == sorted(card.classes)
    stems = [archive.file.split(".")[0] for archive in card.archives if not archive.file.endswith(".npy")]
    assert len(set(stems)) == len(stems), "archives are unpacked side by side"
    assert card.superseded_by is None or card.superseded_by in DATASETS


def test_a_dataset_that_has_a_successor_says_so(root, tmp_path):
    for place in ("38", "43", "46", "100"):
        path = tmp_path / "raw" / f"location_{place}" / "bird" / "a.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(picture(str(path)))
    with (
        pytest.warns(UserWarning, match=r"TerraIncognita is superseded by TerraIncognita-24330 \(.*now in circulation"),
        pytest.raises(DataError, match=r"not as its card says: L100 1 \(should be 4879\)"),
    ):
        prepare("TerraIncognita", tmp_path / "raw")
    with (
        pytest.warns(UserWarning, match="is superseded by"),
        pytest.raises(DataError, match=r"no public mirror; .*lila\.science.*, or prepare TerraIncognita-24330 instead"),
    ):
        prepare("TerraIncognita")


def test_what_a_card_learns_later_holds_for_packs_made_before(root, tmp_path):
    DATASETS.add("PACS", entry_as_made("PACS", made_dataset("PACS").domains()))
    prepare("PACS", unpacked("PACS", tmp_path / "raw"))
    later = DATASETS["PACS"].card.model_copy(update={"groupings": {"halves": (("photo",), ("sketch",))}})
    DATASETS.add("PACS", DATASETS["PACS"]._replace(card=later))
    forget()
    assert load("PACS").card.groupings == card("PACS").groupings == later.groupings
    DATASETS.add("PACS", DATASETS["PACS"]._replace(card=later.model_copy(update={"version": 2})))
    forget()
    assert card("PACS").version == 1 and not card("PACS").groupings, "of another version nothing is taken"


@pytest.mark.slow
@pytest.mark.skipif(not REAL_PACS.exists(), reason="the real PACS images are not here")
def test_the_real_images_of_pacs(root, tmp_path):
    """All 9,991 at 128 px, sorted into folders as the published archive has them."""
    with np.load(REAL_PACS) as real:
        jpeg, offsets = real["jpeg"], real["offsets"]
        labels, domains = real["classes"][real["label"]], real["domains"][real["domain"]]
    for i, (domain, label) in enumerate(zip(domains, labels, strict=True)):
        path = tmp_path / "kfold" / str(domain) / str(label) / f"pic_{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg[offsets[i] : offsets[i + 1]].tobytes())
    made = prepare("PACS", tmp_path)
    assert made.card.domains == DATASETS["PACS"].card.domains and made.left_out == made.duplicates == []
    assert all(domain.inputs.shape[1:] == (128, 128, 3) for domain in load("PACS").domains)


def test_numbers_of_classes():
    sizes = {name: len(DATASETS[name].card.classes) for name in MAKERS}
    known = {"PACS": 7, "VLCS": 5, "OfficeHome": 65, "TerraIncognita": 10, "DomainNet": 345, "NICO++": 80, "FMoW": 62}
    known |= {"NICO++-public": 60, "ImageNet-A": 200, "ImageNet-R": 200, "ImageNet-V2": 1000, "ImageNet-Sketch": 1000}
    assert {name: sizes[name] for name in known} == known


def test_a_folder_dataset_is_one_card_file(tmp_path):
    described = {
        **{"name": "Mine", "version": 1, "summary": "s", "domains": {"x": 1, "y": 1}, "classes": ["b", "a"]},
        **{"size_class": "large", "licence": "l", "source": "s", "citation": "c", "layout": "folders"},
    }
    for path in ("wrapped/x/a/1.jpg", "wrapped/y/b/1.png", "wrapped/y/b/notes.txt", "wrapped/y/b/._1.jpg"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")
    listing = make_entry(described).read(tmp_path)
    assert [(one.domain, one.label, one.path.name) for one in listing.examples] == [
        ("x", "a", "1.jpg"),
        ("y", "b", "1.png"),
    ]
    assert listing.classes == ("b", "a"), "a domain that lacks a class keeps the others' numbers"


def test_declared_domains_are_looked_for_on_disk(tmp_path):
    folder = unpacked("PACS", tmp_path)
    shutil.rmtree(folder / "PACS/kfold/photo")
    with pytest.raises(DataError, match=r"PACS has the domains art_painting, .* no folder with its classes for photo"):
        read("PACS", folder)


def test_a_domain_that_is_there_twice_is_refused(tmp_path):
    folder = unpacked("PACS", tmp_path)
    shutil.copytree(folder / "PACS/kfold/photo", folder / "again/photo")
    with pytest.raises(DataError, match=r"Domain 'photo' of PACS is there twice, .*/photo and .*/photo; move"):
        read("PACS", folder)


def test_links_that_lead_back_are_followed_once(tmp_path):
    (tmp_path / "photo" / "dog").mkdir(parents=True)
    (tmp_path / "photo" / "dog" / "a.png").write_bytes(b"")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "photo" / "up").symlink_to("..")
    assert [path.name for path in walk_images(tmp_path)] == ["a.png"]
    assert find_folders(tmp_path, lambda folder, inside: "dog" in inside) == [tmp_path / "photo"]


def test_a_folder_that_is_no_class_is_refused(tmp_path):
    folder = unpacked("PACS", tmp_path)
    (folder / "PACS/kfold/photo/dog").rename(folder / "PACS/kfold/photo/dogs")
    with pytest.raises(DataError, match=r"photo/dogs is in domain 'photo' but no class of PACS"):
        read("PACS", folder)


def test_terra_incognita_keeps_four_locations_and_ten_classes(tmp_path):
    listing = read("TerraIncognita-24330", unpacked("TerraIncognita-24330", tmp_path))
    assert listing.domains == ("L100", "L38", "L43", "L46")
    counts = Counter((one.domain, one.label) for one in listing.examples)
    assert counts["L38", "cat"] == 4, "two alone, one annotated twice, one with a dog"
    assert counts["L38", "dog"] == 3
    assert counts["L38", "bird"] == 2, "one is annotated but not in the archive"
    assert len({one.group for one in listing.examples if one.domain == "L100"}) == 10, "bursts of two"


def test_terra_incognita_as_domainbed_sorts_it_needs_no_annotations(tmp_path):
    for place in ("38", "43", "46", "100"):
        path = tmp_path / f"location_{place}" / "bird" / "a.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(picture(str(path)))
    listing = read("TerraIncognita", tmp_path)
    assert [one.domain for one in listing.examples] == ["L100", "L38", "L43", "L46"]


def test_the_annotations_of_terra_incognita_are_read_once(tmp_path):
    """DomainBed scans all annotations for each image; 20,000 images must take no time."""
    described = DESCRIPTIONS["TerraIncognita-24330"]
    size = 20_000
    content = {
        "images": [{"id": i, "file_name": f"{i}.jpg", "location": 38} for i in range(size)],
        "annotations": [{"image_id": i, "category_id": 0} for i in range(size)],
        "categories": [{"id": 0, "name": "bird"}],
    }
    (tmp_path / "caltech_images.json").write_text(json.dumps(content))
    (tmp_path / "7.jpg").write_bytes(b"")
    only = {"domains": {"L38": 1}, "options": described["options"] | {"locations": {"L38": "38"}}}
    assert len(make_entry(described | only).read(tmp_path).examples) == 1


def test_domainnet_leaves_out_the_published_duplicates_or_says_that_the_list_is_missing(tmp_path):
    folder = unpacked("DomainNet", tmp_path)
    names = {one.path.name for one in read("DomainNet", folder).examples}
    assert "clipart_052_000001.jpg" in names and "clipart_052_000004.jpg" not in names

    shutil.rmtree(folder / "DomainBed")
    with pytest.raises(DataError, match=r"692 images and DomainNet has 690: .*domain_net_duplicates.txt, is not"):
        read("DomainNet", folder)
    (folder / "clipart/clipart/cake/clipart_052_000004.jpg").unlink()
    (folder / "clipart/clipart/couch/clipart_081_000003.jpg").unlink()
    assert len(read("DomainNet", folder).examples) == 690, "a copy that was cleaned before needs no list"


def paper_counts():
    with (files("shiftbed.data") / "cards" / "nico_plus_plus_counts.csv").open() as file:
        return {row.pop("class"): row for row in csv.DictReader(file)}


def test_nico_plus_plus_has_the_paper_s_groups():
    card = DATASETS["NICO++"].card
    assert {name: len(group) for name, group in card.hierarchy.items()} == {
        **{"animal": 40, "plant": 12, "vehicle": 14, "substance": 14},
    }
    assert {name: len(group) for name, group in card.clusters.items()} == {"location": 2, "background": 4, "time": 4}
    common = {domain for group in card.clusters.values() for domain in group}
    assert set(card.domains) == common | {f"uni_{k}" for k in range(1, 11)}
    public = DATASETS["NICO++-public"].card
    assert set(public.classes) < set(card.classes) and set(public.domains) < common


def test_nico_plus_plus_counts_are_those_of_tables_10_and_11():
    card, counts = DATASETS["NICO++"].card, paper_counts()
    assert sorted(counts) == list(card.classes)
    for domain in (name for name in card.domains if not name.startswith("uni_")):
        assert sum(int(row[domain]) for row in counts.values()) == card.domains[domain], domain
    assert sum(map(int, list(counts["dog"].values())[:10])) == 4620
    unique = {label: [int(row[f"uni_{k}"] or 0) for k in range(1, 11)] for label, row in counts.items()}
    assert all(sizes == sorted(sizes, reverse=True) for sizes in unique.values()), "by falling size"
    assert [label for label, sizes in unique.items() if not sizes[0]] == ["banana", "lemon"], "cannot be read"
    assert (sum(unique["dog"]), sum(unique["bear"]), sum(unique["train"])) == (995, 1081, 962)


def test_unique_domains_are_numbered_by_falling_size(tmp_path):
    folder = unpacked("NICO++", tmp_path)
    largest = [one for one in read("NICO++", folder).examples if one.domain == "uni_1" and one.label == "dog"]
    assert {one.path.parent.name for one in largest} == {"with people"}
    shutil.rmtree(folder / "NICO++/NICO++/unique/dog/doing 1")
    with pytest.raises(DataError, match=r"unique/dog has 9 folders; NICO\+\+ has 10 a class"):
        read("NICO++", folder)


def test_cifar_10_w_has_180_domains_in_14_sources_and_four_to_train_on():
    card = DATASETS["CIFAR-10-W"].card
    sizes = {group: len(domains) for group, domains in card.clusters.items()}
    assert len(sizes) == 14 and sum(sizes.values()) == 180
    assert (sizes["Flickr"], sizes["Pexels"], sizes["DF.h"]) == (15, 20, 13)
    assert sorted(sizes.values()) == [12] * 11 + [13, 15, 20]
    trained_on = {domain: n for domain, n in card.domains.items() if n}
    assert trained_on == {"Yandex-C": 4857, "Yandex-CC": 4044, "Diff-C": 4000, "Diff-CC": 4000}


def test_cifar_10_w_knows_sources_by_their_path_and_says_what_was_not_found(tmp_path):
    folder = unpacked("CIFAR-10-W", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listing = read("CIFAR-10-W", folder)
    places = {domain: path for _, path, domain in warehouse_sets(DESCRIPTIONS["CIFAR-10-W"])}
    assert all(one.path.parent.parent.as_posix().endswith(places[one.domain]) for one in listing.examples)

    shutil.rmtree(folder / "data_google_cartoon_original")
    shutil.rmtree(folder / "training/CIFAR-10-W-train/yandex-c")
    shutil.rmtree(folder / "data_flickr_original/data_flickr_original/FLICKR-03")
    told = (
        r"167 of 180 test .* found, and 3 of 4 training domains \(Flickr 14 of 15, Google-CT 0 of 12, Yandex-C missing"
    )
    with pytest.warns(UserWarning, match=told):
        listing = read("CIFAR-10-W", folder)
    assert len(listing.domains) == 170
    assert "Flickr-03" not in listing.domains and "Flickr-15" in listing.domains, "the others keep their numbers"


def test_cifar_10_w_refuses_sets_that_are_there_twice_or_of_no_source(tmp_path):
    folder = unpacked("CIFAR-10-W", tmp_path, only="diffusion_original")
    again = folder / "copy_of_diffusion_original"
    shutil.copytree(folder / "diffusion_original", again)
    with pytest.raises(DataError, match="has 24 domains of DF and CIFAR-10-W has 12; move away"):
        read("CIFAR-10-W", folder)
    again.rename(folder / "new")
    (folder / "new" / "diffusion_original").rename(folder / "new" / "unheard of")
    with pytest.raises(
        DataError, match=r"unheard of/DF-\d+ has the classes of CIFAR-10-W but is of none of its sources"
    ):
        read("CIFAR-10-W", folder)


def test_nico_takes_the_corrected_lists_wherever_the_first_ones_lie_and_refuses_those(tmp_path):
    """OoD-Bench's repository has both, under the same names; in the first, test images are trained on."""
    folder = unpacked("NICO", tmp_path) / "NICO" / "NICO"
    expected = read("NICO", tmp_path)
    corrected, first = folder / "mixed_split_corrected", folder / "mixed_split"
    shutil.copytree(corrected, first)
    (first / "env_test.csv").write_bytes((first / "env_train1.csv").read_bytes())
    assert read("NICO", tmp_path) == expected
    shutil.rmtree(corrected)
    with pytest.raises(DataError, match=r"lists of NICO both train on and test .*; take those of mixed_split_correct"):
        read("NICO", tmp_path)
    (first / "env_test.csv").rename(folder / "env_test.csv")
    first.rename(tmp_path / "lists")
    (folder / "env_test.csv").write_text("\n".join(_rows_of(expected, "test")), encoding="utf-8")
    assert read("NICO", tmp_path) == expected, "right lists in any folder"


def _rows_of(listing, domain):
    """The list of a domain of NICO, as OoD-Bench writes it."""
    for one in listing.examples:
        if one.domain == domain:
            *_, thing, place, file = one.path.parts
            yield f"{thing}\\{place}\\{file},{thing},{place},{one.label}"


@pytest.mark.parametrize(
    ("name", "file", "damage"),
    [
        ("NICO", "env_val.csv", lambda text: "bear\\on_snow\\0.jpg\n"),
        ("Camelyon17", "metadata.csv", lambda text: text.splitlines()[0] + "\n" + "x," * 20),
        ("CelebA", "te_env.csv", lambda text: text.replace(",1", ",7")),
        ("FMoW", "rgb_metadata.csv", lambda text: text.replace("20", "MM")),
        ("TerraIncognita-24330", "caltech_*.json", lambda text: '{"images": [{"id": 1}]}'),
        ("TerraIncognita-24330", "caltech_*.json", lambda text: "[]"),
    ],
)
def test_a_table_that_is_damaged_inside_is_one_sentence(name, file, damage, root, tmp_path):
    folder = unpacked(name, tmp_path / "raw")
    (path,) = folder.rglob(file)
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    DATASETS.add(name, entry_as_made(name, made_dataset(name).domains()))
    with pytest.raises(DataError, match=f"A file of {name} is not as it was published .*; get the files again"):
        prepare(name, folder)


def test_spawrious_takes_the_first_images_by_name(tmp_path):
    listing = read("SpawriousO2O_easy", unpacked("SpawriousO2O_easy", tmp_path))
    bulldogs = [one.path for one in listing.examples if one.label == "bulldog"]
    places = Counter((one.parts[-4], one.parts[-3], one.parts[-2]) for one in bulldogs)
    assert places == {
        **{("0", "desert", "bulldog"): 9, ("0", "beach", "bulldog"): 1, ("1", "desert", "bulldog"): 8},
        **{("1", "beach", "bulldog"): 2, ("0", "dirt", "bulldog"): 10, ("1", "dirt", "bulldog"): 10},
    }
    assert int(0.97 * 3168) == 3072 and int(0.87 * 3168) == 2756, "of the real folders"


def test_spawrious_many_to_many_has_each_breed_in_two_places(tmp_path):
    listing = read("SpawriousM2M_hard", unpacked("SpawriousM2M_hard", tmp_path))
    corgis = {(one.domain, one.path.parts[-3]) for one in listing.examples if one.label == "corgi"}
    assert corgis == {("SC_group_1", "beach"), ("SC_group_2", "snow"), ("Test", "jungle"), ("Test", "dirt")}


@pytest.mark.parametrize(
    ("name", "lost", "told"),
    [
        ("NICO", "NICO/NICO/mixed_split_corrected/env_val.csv", "NICO needs the file env_val.csv"),
        ("NICO", "NICO/NICO/animal/images/bear/on_snow/0.jpg", "1 images that the lists of NICO name are missing"),
        (
            "CelebA",
            "img_align_celeba/img_align_celeba/000001.jpg",
            "1 images that the lists of CelebA name are missing",
        ),
        ("CelebA", "img_align_celeba", "CelebA needs the folder img_align_celeba"),
        ("Camelyon17", "camelyon17_v1/metadata.csv", "Camelyon17 needs the file metadata.csv"),
        ("FMoW", "fmow_v1/images/rgb_img_0.png", "1 images that the lists of FMoW name are missing"),
        ("ImageNet-A", "ILSVRC2012", r"no folder with its classes for imagenet \(a folder val\)"),
        (
            "SpawriousO2O_hard",
            "spawrious224__o2o_hard/spawrious224/1/beach/corgi",
            "needs the images of .*1/beach/corgi",
        ),
    ],
)
def test_what_is_missing_is_named(name, lost, told, tmp_path):
    folder = unpacked(name, tmp_path)
    shutil.rmtree(folder / lost) if (folder / lost).is_dir() else (folder / lost).unlink()
    with pytest.raises(DataError, match=told):
        read(name, folder)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_an_empty_folder_is_one_sentence(name, tmp_path):
    with pytest.raises(DataError, match=DATASETS[name].card.name.replace("+", r"\+")):
        DATASETS[name].read(tmp_path)


def test_groups_and_parts_are_kept(tmp_path):
    slides = read("Camelyon17", unpacked("Camelyon17", tmp_path / "c")).examples
    assert len({one.group for one in slides}) == 10
    parts = read("FMoW", unpacked("FMoW", tmp_path / "f")).examples
    assert {(one.domain, one.split) for one in parts} == {
        *(("2002-2012", "train"), ("2002-2012", "test"), ("2013-2015", "val"), ("2016-2017", "test")),
    }


def test_labels_follow_the_published_numbers():
    """Sorted folder names, as DomainBed numbers classes; ImageNet-V2's folders are numbers of the sorted synsets."""
    for name in ("PACS", "VLCS", "OfficeHome", "DomainNet", "TerraIncognita", "ImageNet-V2", "SpawriousM2M_easy"):
        classes = DATASETS[name].card.classes
        assert list(classes) == sorted(classes), name
    assert DATASETS["CelebA"].card.classes.index("blond") == 1
    assert np.array_equal(DATASETS["DomainNet"].card.classes[:1], ["The_Eiffel_Tower"])
