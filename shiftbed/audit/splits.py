"""Splits and recipes: who validates, who trains, and whether validation images are changed."""

from shlex import quote
from typing import Any

from shiftbed.audit.findings import Finding
from shiftbed.audit.subject import Subject
from shiftbed.protocols import Flexible, TargetTrained
from shiftbed.sweeps.domainbed_format import REVISION

VALIDATION_SOURCE = "validation from the test domain"
LABELS_SOURCE = "test labels in training"
AUGMENTED_SOURCE = "augmented validation"
WEIGHTS_SOURCE = "pretraining"


def validation_domains(subject: Subject) -> Finding:
    """Whether a split that validates is of a domain that is tested."""
    found = _overlapping(subject, "validation")
    if found:
        jobs, example = found
        sentence = f"{jobs} jobs validate on a domain that they test (such as {example}): every honest selection leaks."
        return Finding(VALIDATION_SOURCE, "alarm", sentence)
    return Finding(VALIDATION_SOURCE, "clear", "no job validates on a domain that it tests.")


def training_labels(subject: Subject) -> Finding:
    """Whether a split that trains is of a domain that is tested, with its labels or without."""
    found = _overlapping(subject, "train")
    if found:
        jobs, example = found
        sentence = f"{jobs} jobs train on labels of a domain that they test (such as {example})."
        return Finding(LABELS_SOURCE, "alarm", sentence)
    adapted = [about for about in subject.abouts if any(s["role"] == "unlabelled" for s in about["splits"])]
    references = sum(about["task"]["kind"] == TargetTrained.kind for about in subject.abouts)
    notes = f" {references} target-trained jobs are references, not results." if references else ""
    if adapted:
        share = adapted[0]["task"].get("adapt", 0.0)
        sentence = f"{len(adapted)} jobs are given {share:g} of their test domains without labels: this is adaptation."
        return Finding(LABELS_SOURCE, "exposed", sentence + notes)
    return Finding(LABELS_SOURCE, "clear", f"no job trains on a domain that it tests.{notes}")


def _overlapping(subject: Subject, role: str) -> tuple[int, str] | None:
    """How many jobs have a tested domain in this role, with an example.

    In NICO++'s flexible settings a domain trains some classes and tests others; its target-trained models are meant
    to learn from the test domains.
    """

    def wrong(about: dict[str, Any]) -> list[str]:
        if about["task"]["kind"] in (Flexible.kind, TargetTrained.kind):
            return []
        tested = set(about["test_domains"])
        return [split["name"] for split in about["splits"] if split["role"] == role and split["domain"] in tested]

    found = [(about, wrong(about)) for about in subject.abouts]
    bad = [(about, names) for about, names in found if names]
    if not bad:
        return None
    about, names = bad[0]
    return len(bad), f"{names[0]} in job {about['id']}"


def augmented_validation(subject: Subject) -> Finding:
    """Whether validation images are changed as training images are, which test images never are."""
    by_recipe = sorted(
        {about["recipe"]["name"] for about in subject.abouts if about["recipe"].get("augment_validation")}
    )
    foreign = [about for about in subject.abouts if about["revision"] == REVISION]
    if by_recipe:
        sentence = (
            f"recipe {' and '.join(by_recipe)} augments validation images: selection sees harder images than the test."
        )
        return Finding(AUGMENTED_SOURCE, "alarm", sentence)
    if any(about["hparams"].get("data_augmentation") for about in foreign):
        sentence = "DomainBed augments the validation images of jobs with data_augmentation, as these have."
        return Finding(AUGMENTED_SOURCE, "alarm", sentence)
    if foreign and not all("data_augmentation" in about["hparams"] for about in foreign):
        return Finding(AUGMENTED_SOURCE, "unknown", "DomainBed's records do not say whether images were augmented.")
    return Finding(AUGMENTED_SOURCE, "clear", "validation images are as they are.")


def initial_weights(subject: Subject) -> Finding:
    """What the networks start from; whether accuracy comes from there is answered by training."""
    named = sorted({str(about["recipe"].get("initial_weights")) for about in subject.abouts})
    if subject.imported:
        sentence = "DomainBed's records do not say what the networks started from (ImageNet's weights, unless changed)."
        return Finding(WEIGHTS_SOURCE, "unknown", sentence)
    if named == ["None"]:
        return Finding(WEIGHTS_SOURCE, "clear", "all networks start from random weights.")
    what = " and ".join(name for name in named if name != "None")
    run = ("Linear probes against fine-tuning", f"shiftbed audit {quote(str(subject.folder))} --run")
    return Finding(
        WEIGHTS_SOURCE, "exposed", f"networks start from {what}, which may know the test domains.", (), [run]
    )
