"""Tiny archives in the published layout of every public dataset: its folders, file names and class list.

`python -m tests.data.made_archives FOLDER` writes them all, to look at.
"""

import csv
import gzip
import io
import json
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from shiftbed.data.public import read_descriptions

SPLIT_ROWS = 2
BURST = 2


@dataclass
class Made:
    """What a made dataset consists of.

    Attributes:
        members: Archive name to member name to bytes.
        counts: Domain to class to the number of examples that `prepare` should find.
    """

    members: dict[str, dict[str, bytes]] = field(default_factory=lambda: defaultdict(dict))
    counts: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))

    def put(self, archive: str, member: str, domain: str | None = None, label: str | None = None) -> None:
        """Adds an image, which counts where it is an example of a domain."""
        self.members[archive][member] = picture(f"{archive}/{member}")
        if domain is not None and label is not None:
            self.counts[domain][label] += 1

    def archives(self) -> dict[str, bytes]:
        return {name: packed(name, members) for name, members in self.members.items()}

    def domains(self) -> dict[str, int]:
        return {domain: sum(labels.values()) for domain, labels in self.counts.items()}


def picture(name: str) -> bytes:
    """An image of 8×8 pixels that no other name has, in the format of the name."""
    seed = np.frombuffer(name.encode().ljust(8, b"."), np.uint8)
    pixels = np.random.default_rng(seed.tolist()).integers(0, 255, (8, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG" if name.lower().endswith(".png") else "JPEG")
    return buffer.getvalue()


def packed(name: str, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), 1) if name.endswith("gz") else buffer.getvalue()


def table(*rows: tuple) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


def folders(archive: str, path: str, images: int = 1) -> Callable[[dict], Made]:
    """A maker of `domain/class/image`; the path's fields are domain, label, and numbers of the image."""

    def make(description: dict) -> Made:
        made = Made()
        for domain in description["domains"]:
            for c, label in enumerate(description["classes"]):
                for i in range(images):
                    member = path.format(domain=domain, label=label, i=i, number=c * images + i + 1)
                    made.put(archive.format(domain=domain), member, domain, label)
        return made

    return make


def domain_net(description: dict) -> Made:
    """Classes are numbered without regard to case and signs; two images of clipart are in the list of duplicates.

    To save time a domain has every third class.
    """
    made = Made()
    numbers = sorted(description["classes"], key=lambda label: label.lower().replace("_", "").replace("-", ""))
    for d, domain in enumerate(description["domains"]):
        for c, label in list(enumerate(numbers, start=1))[d % 3 :: 3]:
            suffix = "png" if domain == "quickdraw" else "jpg"
            made.put(f"{domain}.zip", f"{domain}/{label}/{domain}_{c:03d}_000001.{suffix}", domain, label)
    doubles = ["clipart/cake/clipart_052_000004.jpg", "clipart/couch/clipart_081_000003.jpg"]
    for double in doubles:
        made.put("clipart.zip", double)
    listed = [*doubles, "clipart/couch/clipart_081_999999.jpg"]
    name = "DomainBed-main/domainbed/misc/domain_net_duplicates.txt"
    made.members["DomainBed.zip"][name] = "\n".join(listed).encode()
    return made


def cinic(description: dict) -> Made:
    """A part is a domain; images of CIFAR-10 and of ImageNet lie side by side."""
    made = Made()
    for domain in description["domains"]:
        for c, label in enumerate(description["classes"]):
            made.put("CINIC-10.tar.gz", f"{domain}/{label}/cifar10-{domain}-{100 + c}.png", domain, label)
            made.put("CINIC-10.tar.gz", f"{domain}/{label}/n0269115{c}_10031.png", domain, label)
    made.members["CINIC-10.tar.gz"]["README.md"] = b"CINIC-10"
    return made


SVIRO_CARS = {
    **{"aclass": "Mercedes_A_Class", "escape": "Ford_Escape", "hilux": "Toyota_Hilux", "i3": "BMW_i3"},
    **{"lexus": "Lexus_GS_F", "tesla": "Tesla_Model_3", "tiguan": "VW_Tiguan", "tucson": "Hyundai_Tucson"},
    **{"x5": "BMW_X5", "zoe": "Renault_Zoe"},
}


def sviro(description: dict) -> Made:
    made = Made()
    for domain in description["domains"]:
        for c, label in enumerate(description["classes"]):
            car = SVIRO_CARS[domain]
            path = f"SVIRO_DOMAINBED/{car}/{c}/{car}_train_imageID_{c}_seatPosition_0_GT_{c}.png"
            made.put("sviro_grayscale_rectangle_classification.zip", path, domain, label)
    return made


def terra_incognita(description: dict) -> Made:
    """Every class at every location in bursts of two; and what must be left out, or is there twice."""
    made = Made()
    categories = [*description["classes"], "deer", "car"]
    images, annotations = [], []
    archive = description["archives"][0]["file"] if description.get("archives") else f"{description['name']}.zip"
    labels = description["archives"][1]["file"] if description.get("archives") else archive
    places = {place: domain for domain, place in description["options"]["locations"].items()} | {"120": None}

    def photo(place: str, shown: list[str], on_disk: bool = True) -> None:
        key = f"59{len(images):06d}-23d2-11e8-a6a3-ec086b02610b"
        seq = f"seq-{len(images) // BURST}"
        images.append({"id": key, "file_name": f"{key}.jpg", "location": place, "seq_id": seq, "frame_num": 1})
        annotations.extend(
            {"id": f"a{len(annotations)}-{label}", "image_id": key, "category_id": categories.index(label)}
            for label in shown
        )
        if on_disk:
            made.put(archive, f"eccv_18_all_images_sm/{key}.jpg")
            for label in set(shown) & set(description["classes"]):
                if places[place]:
                    made.counts[places[place]][label] += 1

    for place in places:
        for label in description["classes"]:
            photo(place, [label])
            photo(place, [label])
    photo("38", ["deer"])
    photo("38", ["cat", "cat"])
    photo("38", ["cat", "dog"])
    photo("38", ["bird"], on_disk=False)
    content = {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(categories)],
    }
    made.members[labels]["caltech_images_20210113.json"] = json.dumps(content).encode()
    return made


def spawrious(description: dict) -> Made:
    """Ten images in each folder, so that 97 % and 87 % are nine and eight."""
    made = Made()
    options, (tested, *groups) = description["options"], description["domains"]
    filler = options.get("filler")
    archive = description["archives"][0]["file"]
    needed = {
        (k if filler else 0, place, label)
        for part in ("train", "test")
        for label, places in options[part].items()
        for k, place in enumerate(places)
    }
    needed |= {(k, filler, label) for k in range(2) for label in description["classes"]} if filler else set()
    for half, place, label in sorted(needed):
        for i in range(10):
            made.put(archive, f"spawrious224/{half}/{place}/{label}/{label}_{place}_{i}.png")
    for label in description["classes"]:
        made.counts[tested][label] += 20
        for group in groups:
            made.counts[group][label] += 10
    return made


def nico(description: dict) -> Made:
    """The lists' backslashes, and images that no list names."""
    made = Made()
    scenes = {
        "animal": [("bear", "on_snow"), ("cat", "on_grass")],
        "vehicle": [("car", "on_beach"), ("truck", "in_forest")],
    }
    for d, domain in enumerate(description["domains"]):
        rows = []
        for label, seen in scenes.items():
            for thing, place in seen:
                for i in range(SPLIT_ROWS):
                    name = f"{10 * d + i}.{'jpeg' if i else 'jpg'}"
                    made.put("NICO.zip", f"NICO/{label}/images/{thing}/{place}/{name}", domain, label)
                    rows.append((f"{thing}\\{place}\\{name}", thing, place, label))
        made.members["NICO.zip"][f"NICO/mixed_split_corrected/env_{domain}.csv"] = table(*rows)
    made.put("NICO.zip", "NICO/animal/images/bear/on_snow/999.jpg")
    return made


def celeba(description: dict) -> Made:
    made = Made()
    for d, domain in enumerate(description["domains"]):
        rows: list[tuple] = [("", *range(40))]
        for c, label in enumerate(description["classes"]):
            for i in range(SPLIT_ROWS):
                name = f"{10 * d + 2 * c + i + 1:06d}.jpg"
                made.put("img_align_celeba.zip", f"img_align_celeba/{name}", domain, label)
                rows.append((name, *(c if attribute == 9 else (attribute + i) % 2 for attribute in range(40))))
        folder = "OoD-Bench-2140093fee982b19f122de2f198ec5831442daad/data/celeba/blond_split"
        made.members["OoD-Bench.zip"][f"{folder}/{domain}.csv"] = table(*rows)
    made.put("img_align_celeba.zip", "img_align_celeba/202599.jpg")
    return made


def camelyon17(description: dict) -> Made:
    made = Made()
    archive = description["archives"][0]["file"]
    rows: list[tuple] = [("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")]
    for d, domain in enumerate(description["domains"]):
        for c, label in enumerate(description["classes"]):
            for i in range(2):
                node, patient = f"{i}", f"{20 * d + 4:03d}"
                where = f"patient_{patient}_node_{node}"
                made.put(archive, f"patches/{where}/patch_{where}_x_{32 * c}_y_64.png", domain, label)
                rows.append((len(rows) - 1, patient, node, 32 * c, 64, c, 10 * d + i, d, i))
    made.members[archive]["metadata.csv"] = table(*rows)
    return made


def fmow(description: dict) -> Made:
    """All classes in every period, the parts that WILDS leaves out of a period, and sequestered images."""
    made = Made()
    archive = description["archives"][0]["file"]
    rows: list[tuple] = [("split", "img_filename", "timestamp", "category", "country_code")]
    used = {2010: ("train", "2002-2012"), 2014: ("val", "2013-2015"), 2016: ("test", "2016-2017")}
    for label in description["classes"]:
        for year, (part, domain) in used.items():
            made.put(archive, f"images/rgb_img_{len(rows) - 1}.png", domain, label)
            rows.append((part, "x.jpg", f"{year}-08-09T17:00:45Z", label, "FRA"))
    others = (("seq", 2005, None), ("train", 2014, None), ("val", 2017, None), ("test", 2003, "2002-2012"))
    for part, year, domain in others:
        made.put(archive, f"images/rgb_img_{len(rows) - 1}.png", domain, "zoo" if domain else None)
        rows.append((part, "x.jpg", f"{year}-01-02T00:00:00Z", "zoo", "USA"))
    made.members[archive]["rgb_metadata.csv"] = table(*rows)
    return made


def nico_plus_plus(description: dict) -> Made:
    """The layout is not published. A class's largest unique domain is the last by name."""
    made = Made()
    archive = "NICO++.zip"
    common = [domain for domain in description["domains"] if not domain.startswith("uni_")]
    for c, label in enumerate(description["classes"]):
        for domain in common[c % 4 :: 4]:  # to save time
            made.put(archive, f"NICO++/{domain}/{label}/{label}_0.jpg", domain, label)
        for k in range(1, 10):
            made.put(archive, f"NICO++/unique/{label}/doing {k}/{label}_0.jpg", f"uni_{k + 1}", label)
        for i in range(2):
            made.put(archive, f"NICO++/unique/{label}/with people/{label}_{i}.jpg", "uni_1", label)
    return made


def warehouse_sets(description: dict) -> Iterator[tuple[str, str, str]]:
    """Archive, folder and domain of every set, cartoons of Google and the training sets in archives of their own."""
    named = {"DF": "diffusion", "DF.c": "diffusion_cartoon", "DF.h": "diffusion_hard", "Bing-CT": "bing_cartoon"}
    named |= {"Pexels": "data_pexel", "Sogou": "data_sougou"}
    for group, domains in description["clusters"].items():
        stem = named.get(group, f"data_{group.lower().replace('-ct', '_cartoon')}")
        for k, domain in enumerate(domains, start=1):
            yield f"{stem}_original.zip", f"{stem}_original/{group.upper()}-{k:02d}", domain
    for domain in ("Yandex-C", "Yandex-CC", "Diff-C", "Diff-CC"):
        yield "training.zip", f"CIFAR-10-W-train/{domain.lower()}", domain


def warehouse(description: dict) -> Made:
    made = Made()
    for archive, folder, domain in warehouse_sets(description):
        for label in description["classes"][::-1][:6]:  # to save time; more than half make a domain
            made.put(archive, f"{folder}/{label}/0001.jpg", domain, label)
        made.members[archive]["readme.txt"] = b"CIFAR-10-W"
    return made


def imagenet(archive: str, folder: str, numbered: bool = False) -> Callable[[dict], Made]:
    """A variant, and ImageNet's validation images sorted by class, with a class more than the smaller variants."""

    def make(description: dict) -> Made:
        made = Made()
        reference, variant = description["domains"]
        few = list(enumerate(description["classes"]))[3::4]  # to save time; the last class is among them
        for c, label in few:
            made.put("ILSVRC2012.zip", f"imagenet/val/{label}/ILSVRC2012_val_{c + 1:08d}.JPEG", reference, label)
            made.put(archive, f"{folder}/{c if numbered else label}/{label}_0.JPEG", variant, label)
        if "ignore_other_classes" in description["options"]:
            made.put("ILSVRC2012.zip", "imagenet/val/n00000000/ILSVRC2012_val_00050000.JPEG")
        return made

    return make


MAKERS: dict[str, Callable[[dict], Made]] = {
    "PACS": folders("PACS.zip", "kfold/{domain}/{label}/pic_{number:03d}.jpg", images=2),
    "VLCS": folders("VLCS.tar.gz", "VLCS/{domain}/{label}/img_{number}.jpg", images=2),
    "OfficeHome": folders("office_home.zip", "OfficeHomeDataset_10072016/{domain}/{label}/{i:05d}.jpg"),
    "DomainNet": domain_net,
    "SVIRO": sviro,
    "TerraIncognita": terra_incognita,
    "TerraIncognita-24330": terra_incognita,
    "NICO": nico,
    "NICO++-public": folders("track_1.zip", "public_dg_0416/train/{domain}/{label}/{domain}_{number:06d}.jpg"),
    "NICO++": nico_plus_plus,
    "CelebA": celeba,
    "Camelyon17": camelyon17,
    "FMoW": fmow,
    "CIFAR-10-W": warehouse,
    "CINIC-10": cinic,
    "ImageNet-A": imagenet("imagenet-a.tar", "imagenet-a"),
    "ImageNet-R": imagenet("imagenet-r.tar", "imagenet-r"),
    "ImageNet-V2": imagenet(
        "imagenetv2-matched-frequency.tar.gz", "imagenetv2-matched-frequency-format-val", numbered=True
    ),
    "ImageNet-Sketch": imagenet("ImageNet-Sketch.zip", "sketch"),
    **{f"Spawrious{kind}_{level}": spawrious for kind in ("O2O", "M2M") for level in ("easy", "medium", "hard")},
}
DESCRIPTIONS = {description["name"]: description for description in read_descriptions()}


@cache
def made_dataset(name: str) -> Made:
    return MAKERS[name](DESCRIPTIONS[name])


if __name__ == "__main__":
    for dataset in MAKERS:
        for file, content in made_dataset(dataset).archives().items():
            target = Path(sys.argv[1]) / dataset / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
