"""`prepare`: from archives, folders or manifests to a pack that every command finds."""

import csv
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from pathlib import Path

from PIL import UnidentifiedImageError

from shiftbed.data.arrays import check_counts, write_arrays
from shiftbed.data.dataset import DATASETS, Card, DatasetEntry, MultiDomainDataset
from shiftbed.data.download import download, is_archive, unpack
from shiftbed.data.examples import Example, Listing, list_folder, list_manifest
from shiftbed.data.images import Refused, brightest_of_16_bits, image_size
from shiftbed.data.load import forget, unknown_dataset
from shiftbed.data.pack import NotWholeError, has_names_of, read_card, read_pack, read_refused, write_pack
from shiftbed.data.roots import UNFINISHED, data_root, pack_folder, prepared_names
from shiftbed.data.writing import alone, full_disk_as_sentence
from shiftbed.errors import DataError, UnknownNameError
from shiftbed.hashing import digest

MANIFESTS = (".csv", ".jsonl", ".ndjson", ".parquet")
SMALL_PIXELS = 32
LOOKED_AT = 32  # images of each domain


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made.

    Attributes:
        card: The pack's card.
        left_out: Images that could not be read.
        duplicates: Sets of equal files in more than one domain or official part.
    """

    card: Card
    left_out: list[Refused]
    duplicates: list[list[Example]]


def prepare(
    name: str | Path,
    source: str | Path | None = None,
    *,
    rename: str | None = None,
    short_side: int | None = None,
    size_class: str | None = None,
    skip_corrupt: bool = False,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Prepared:
    """Downloads (or takes) a dataset, checks it, and packs it under the data root.

    Args:
        name: A known dataset, or the path of a folder `domain/class/image` or of a manifest.
        source: Where a known dataset's archive or folder already is.
        rename: The name of an own dataset; by default that of its folder or manifest.
        short_side: The side to reduce images to; see `shiftbed.data.pack`.
        size_class: For an own dataset, `small` or `large` instead of what its images suggest.
        skip_corrupt: Go on without images that cannot be read.
        on_progress: Called with what is being done, how much of it, and how much there is.

    Raises:
        DataError: Something about the data is wrong; nothing half-made is used.
        UnknownNameError: There is neither a dataset nor a folder or file of this name.
    """
    if short_side is not None and short_side < 2:
        raise DataError(f"Images cannot be reduced to a short side of {short_side}; 2 pixels are the least.")
    name, given = str(name), Path(source) if source else None
    with full_disk_as_sentence(data_root()):
        try:
            entry = DATASETS[name]
        except UnknownNameError:
            if given is not None and Path(name).exists():
                raise DataError(
                    f"{name} is data of your own, and --from says where a known dataset's are; name one of them."
                ) from None
            if not Path(name).exists():
                if Path(name).name != name:
                    raise DataError(f"There is no folder or manifest {name}.") from None
                raise unknown_dataset(name) from None
            made = _prepare_own(Path(name), rename, short_side, size_class, skip_corrupt, on_progress)
        else:
            for option, value in (("--name", rename), ("--size-class", size_class)):
                if value is not None:
                    raise DataError(f"{option} is for data of your own; leave it out, {name} is a known dataset.")
            made = _prepare_known(entry, given, short_side, skip_corrupt, on_progress)
    forget()
    return made


def _prepare_own(
    path: Path,
    rename: str | None,
    short_side: int | None,
    size_class: str | None,
    skip_corrupt: bool,
    on_progress: Callable[[str, int, int], None],
) -> Prepared:
    name = rename or (path.stem if path.is_file() else path.resolve().name)
    if name.lower() in {known.lower() for known in DATASETS}:  # names are found in any spelling
        raise DataError(f"'{name}' is the name of a known dataset; give yours another with --name.")
    if "/" in name or name.startswith(".") or name.endswith(UNFINISHED):
        raise DataError(f"'{name}' cannot be the name of a dataset; give another with --name.")
    listing = list_manifest(path) if path.suffix.lower() in MANIFESTS else list_folder(path)
    if size_class not in (None, "small", "large"):
        raise DataError(f"There is no size class '{size_class}'; choose small or large.")
    _note_missing_classes(listing)
    _note_spellings(listing)
    _note_twelve_bits(listing)
    if any(one.split for one in listing.examples):
        warnings.warn(
            "The column 'split' only tells equal files of two parts apart; what trains and what is tested, the "
            "protocol divides anew.",
            stacklevel=3,
        )
    content = listing.content(partial(on_progress, "reading"))
    fingerprint = content.fingerprint()
    card = Card(
        name=name,
        version=fingerprint if short_side is None else f"{fingerprint}-{short_side}px",
        summary=f"images of {len(listing.classes)} classes in {len(listing.domains)} domain"
        + ("" if len(listing.domains) == 1 else "s"),
        domains=dict(Counter(one.domain for one in listing.examples)),
        classes=listing.classes,
        size_class=size_class or _guess_size_class(listing),  # type: ignore[arg-type]
        licence="your own",
        source=str(path.name),
        citation="none",
        ran_on="own",
    )
    before = _prepared_before(card)
    left_out = read_refused(pack_folder(name))
    same = before is not None and (before.version, before.size_class) == (card.version, card.size_class)
    same = same and has_names_of(pack_folder(name), listing)  # which tables of predictions show
    if not same or (left_out and not skip_corrupt):
        left_out = write_pack(
            listing,
            card,
            pack_folder(name),
            content=fingerprint,
            short_side=short_side,
            skip_refused=skip_corrupt,
            on_progress=partial(on_progress, "packing"),
        )
    return Prepared(read_card(pack_folder(name)), left_out, content.duplicates())


def _prepared_before(card: Card) -> Card | None:
    """The card of the pack of this name, if there is one; that another version replaces it is said."""
    try:
        before = read_pack(pack_folder(card.name)).card if card.name in prepared_names() else None
    except NotWholeError:  # it is made anew, and what is missing is not missed
        return None
    if before is not None and before.version != card.version:
        images = f"{sum(before.domains.values()):,} images in {', '.join(before.domains)}"
        what = f"({images}); --name gives it another name" if card.ran_on == "own" else f"as version {before.version}"
        warnings.warn(f"This replaces the '{card.name}' that was prepared before {what}.", stacklevel=4)
    return before


def _note_missing_classes(listing: Listing) -> None:
    """Warns of classes that a domain lacks: measures of shift compare what all domains have.

    Of one class alone a model learns to say it, is always right, and seems to be good everywhere.
    """
    if len(listing.classes) == 1:
        warnings.warn(
            f"All images are of the one class '{listing.classes[0]}', so that there is nothing to learn; if it is no "
            "class, sort the images into domain/class/image.",
            stacklevel=4,
        )
    there = {(one.domain, one.label) for one in listing.examples}
    lacking = [pair for pair in product(listing.domains, listing.classes) if pair not in there]
    if lacking:
        shown = "; ".join(f"'{domain}' has no '{label}'" for domain, label in lacking[:3])
        more = f"; and {len(lacking) - 3} more" if len(lacking) > 3 else ""
        warnings.warn(f"Not all domains have all classes: {shown}{more}.", stacklevel=4)


def _note_spellings(listing: Listing) -> None:
    """Warns of classes, and of domains, that differ in nothing but upper and lower case: most likely they are one."""
    for kind, names in (("Classes", listing.classes), ("Domains", listing.domains)):
        by_spelling: dict[str, list[str]] = {}
        for name in names:
            by_spelling.setdefault(name.casefold(), []).append(name)
        alike = next((same for same in by_spelling.values() if len(same) > 1), None)
        if alike:
            named = " and ".join(f"'{name}'" for name in alike)
            warnings.warn(
                f"{kind} {named} differ in upper and lower case only, and are taken for different ones; give them one "
                "name if they are the same.",
                stacklevel=4,
            )


def _note_twelve_bits(listing: Listing) -> None:
    """Warns of 16-bit images that hold 12 bits, as scanners write them: scaled to 8 bits they are nearly black."""
    for domain, examples in groupby(listing.examples, key=lambda one: one.domain):  # they are sorted by domain
        paths = [one.path for one in examples]
        some = paths[:: -(-len(paths) // LOOKED_AT)]
        dark = [(path, most) for path in some if (most := brightest_of_16_bits(path)) is not None and most < 2**12]
        if dark:
            path, most = dark[0]
            warnings.warn(
                f"16-bit images of '{domain}' are nearly black, such as {path}, whose greatest value is {most:,} of "
                "65,535; scale what they hold to all 16 bits, or to 8.",
                stacklevel=4,
            )


def _guess_size_class(listing: Listing) -> str:
    """By the first image that can be read."""
    sizes = (image_size(one.path) for one in listing.examples)
    size = next((size for size in sizes if isinstance(size, tuple)), None)
    return "small" if size and max(size) <= SMALL_PIXELS else "large"


def _prepare_known(
    entry: DatasetEntry,
    source: Path | None,
    short_side: int | None,
    skip_corrupt: bool,
    on_progress: Callable[[str, int, int], None],
) -> Prepared:
    card = entry.card
    if entry.read is None:
        raise DataError(f"{card.name} is built in and needs no preparation.")
    if card.superseded_by:
        better = f"{card.superseded_by} ({DATASETS[card.superseded_by].card.summary})"
        warnings.warn(f"{card.name} is superseded by {better}; new work should use that.", stacklevel=3)
    raw = raw_files(card, source, on_progress)
    with _as_published(card):
        found = entry.read(raw)
        if not isinstance(found, Listing):
            if short_side is not None:
                raise DataError(f"{card.name} is made at one size, and --size does nothing for it; leave it out.")
            if isinstance(found, MultiDomainDataset):
                card, found = found.card, found.domains
            write_arrays(found, card, pack_folder(card.name), partial(on_progress, "making domains"))
            return Prepared(read_card(pack_folder(card.name)), [], [])
    check_counts(card, Counter(one.domain for one in found.examples))
    content = found.content(partial(on_progress, "reading"))
    if short_side is not None:  # other pixels, and so other results
        card = card.model_copy(update={"version": f"{card.version}-{short_side}px"})
    _prepared_before(card)
    left_out = write_pack(
        found,
        card,
        pack_folder(card.name),
        content=content.fingerprint(),
        short_side=short_side,
        skip_refused=skip_corrupt,
        on_progress=partial(on_progress, "packing"),
    )
    return Prepared(read_card(pack_folder(card.name)), left_out, content.duplicates())


@contextmanager
def _as_published(card: Card) -> Iterator[None]:
    """Says in one sentence that a list, a table or an array inside a dataset's files is not what its readers know."""
    try:
        yield
    except (LookupError, TypeError, ValueError, csv.Error, UnidentifiedImageError) as error:
        kind = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise DataError(
            f"A file of {card.name} is not as it was published ({kind}); get the files again ({card.source})."
        ) from error


def raw_files(
    card: Card,
    source: Path | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Path:
    """The folder with a dataset's unpacked files: the user's, or made from its archives.

    Raises:
        DataError: It is not there, cannot be downloaded, or cannot be unpacked.
    """
    if source is not None and not source.exists():
        raise DataError(f"There is no archive or folder {source}.")
    if source is not None and source.is_dir():
        return source
    if source is None and not card.archives:
        instead = f", or prepare {card.superseded_by} instead" if card.superseded_by else ""
        by_hand = f"get it by hand ({card.source}) and prepare it with --from FOLDER{instead}"
        raise DataError(f"{card.name} has no public mirror; {by_hand}.")
    folder = data_root() / "raw" / card.name
    with alone(folder, f"fetching {card.name}"):  # two that write one part of a download would mix it up
        return _downloaded(card, folder, on_progress) if source is None else _given(source, folder)


def _given(source: Path, folder: Path) -> Path:
    if not is_archive(source):
        raise DataError(f"{source} is no archive that can be unpacked; give the folder that its files lie in.")
    about = source.stat()
    own = folder / f"given-{digest([str(source.resolve()), about.st_size, about.st_mtime_ns])[:12]}"
    unpack(source, own / source.name.split(".")[0])
    return own


def _downloaded(card: Card, folder: Path, on_progress: Callable[[str, int, int], None]) -> Path:
    archives = [download(one, folder, on_progress) for one in card.archives]
    packed = [archive for archive in archives if is_archive(archive)]
    for archive in packed:
        unpack(archive, folder / "files" / archive.name.split(".")[0])
    return folder / "files" if len(packed) == len(archives) else folder
