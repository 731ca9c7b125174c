import json

import numpy as np
import pytest

from shiftbed.data import DATASETS, card, load
from shiftbed.data.arrays import write_arrays
from shiftbed.data.dataset import Domain, FixedDomains
from shiftbed.errors import DataError, UnknownNameError
from shiftbed.hashing import seed_hash
from shiftbed.protocols import PROTOCOLS, Fixed, Flexible, LeaveOut, TargetTrained, holdout, spec_of, specs


def test_the_split_equals_domainbeds():
    inside, outside = holdout(10, 0.2, seed_hash(0, 0))
    assert [*outside, *inside] == [2, 3, 8, 1, 4, 5, 0, 9, 6, 7]
    assert len(outside) == 2


def test_tasks_share_the_examples_of_a_domain():
    tasks = [LeaveOut((tested,)).task("RotatedDigits", 1, 0.2) for tested in ("0", "15")]
    first, second = ([split.indices for split in task.splits] for task in tasks)
    assert all(one is other for one, other in zip(first, second, strict=True))
    assert not any(indices.flags.writeable for indices in first)


def test_groups_are_divided_once_for_all_tasks_of_a_trial(monkeypatch):
    divide, asked = specs.groups_inside, []

    def counted(groups, fraction, seed):
        asked.append(seed)
        return divide(groups, fraction, seed)

    monkeypatch.setattr(specs, "groups_inside", counted)
    for tested in ("noto", "twemoji", "fluent-flat"):
        LeaveOut((tested,), grouped=True).task("EmojiStyles", 77, 0.2)  # a trial that no other test has
    assert len(asked) == 1


def test_leave_one_domain_out_tests_each_domain_once():
    tested = PROTOCOLS["leave-one-domain-out"](card("EmojiStyles"))
    assert tested == [LeaveOut((name,)) for name in card("EmojiStyles").domains]


@pytest.mark.parametrize("tested", [("+90%",), ("+80%",), ("-90%",), ("+90%", "-90%")])
def test_splits_cover_every_example_once_with_the_right_role(tested):
    task = LeaveOut(tested).task("ColoredDigits", 1, 0.2)
    for domain, count in card("ColoredDigits").domains.items():
        parts = [split for split in task.splits if split.domain == domain]
        assert sorted(np.concatenate([split.indices for split in parts])) == list(range(count))
        roles = {split.part: split.role for split in parts}
        expected = {"in": "test", "out": "test"} if domain in tested else {"in": "train", "out": "validation"}
        assert roles == expected
    assert task.train_domains == tuple(name for name in card("ColoredDigits").domains if name not in tested)


def test_every_domain_has_a_split_of_its_own():
    task = LeaveOut(("-90%",)).task("ColoredDigits", 3, 0.2)
    for position, domain in enumerate(card("ColoredDigits").domains):
        inside, outside = holdout(599, 0.2, seed_hash(3, position))
        found = {split.part: split.indices for split in task.splits if split.domain == domain}
        assert np.array_equal(found["in"], inside) and np.array_equal(found["out"], outside)


def test_another_trial_splits_otherwise():
    first, second = (LeaveOut(("-90%",)).task("ColoredDigits", trial, 0.2) for trial in (0, 1))
    assert first.fingerprint != second.fingerprint


def test_a_domain_s_split_does_not_depend_on_which_domain_is_tested():
    first, second = (LeaveOut((name,)).task("ColoredDigits", 0, 0.2) for name in ("+90%", "-90%"))
    assert all(np.array_equal(a.indices, b.indices) for a, b in zip(first.splits, second.splits, strict=True))


def test_an_unknown_domain_suggests_the_nearest():
    with pytest.raises(DataError, match=r"EmojiStyles has no domain 'noto-v2'\. Did you mean noto-v1"):
        LeaveOut(("noto-v2",)).task("EmojiStyles", 0, 0.2)


def test_testing_everything_is_refused():
    with pytest.raises(DataError, match="leaves no domain to train on; test fewer, or add a domain"):
        LeaveOut(("+90%", "+80%", "-90%")).task("ColoredDigits", 0, 0.2)


def test_a_domain_too_small_to_split_is_refused():
    with pytest.raises(DataError, match=r"too few to hold out 0\.001 of them; add images, or leave the domain out"):
        LeaveOut(("+90%",)).task("ColoredDigits", 0, 0.001)


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
@pytest.mark.parametrize("dataset", ["EmojiStyles", "RotatedDigits"])
def test_every_protocol_gives_tasks_that_never_test_what_they_train_on(protocol, dataset):
    if protocol.endswith("grouped") and dataset == "RotatedDigits":
        with pytest.raises(DataError, match="has no groups to keep together"):
            PROTOCOLS[protocol](card(dataset))[0].task(dataset, 0, 0.2)
        return
    if protocol == "fixed":
        with pytest.raises(DataError, match=f"{dataset} has no fixed training and test domains"):
            PROTOCOLS[protocol](card(dataset))
        return
    for spec in PROTOCOLS[protocol](card(dataset)):
        assert spec_of(json.loads(json.dumps(spec.describe()))) == spec
        for trial in (0, 1):
            task = spec.task(dataset, trial, 0.2)
            assert task.of_role("train") and task.of_role("validation") and task.of_role("test")
            assert len({split.name for split in task.splits}) == len(task.splits)
            used = [(split.domain, i) for split in task.splits for i in split.indices]
            assert len(used) == len(set(used)), "every example has one role"


def test_groups_stay_on_one_side_in_all_domains():
    task = LeaveOut(("noto",), grouped=True).task("EmojiStyles", 0, 0.2)
    groups = {
        role: {int(load("EmojiStyles")[split.domain].groups[i]) for split in task.of_role(role) for i in split.indices}
        for role in ("train", "validation", "test")
    }
    assert not groups["train"] & (groups["validation"] | groups["test"])
    assert {split.name for split in task.of_role("test")} == {"noto/in", "noto/out"}


def patients(root, of_domains, by_class=False):
    """A dataset of three images a patient, in which domains share some patients; packs of folders are by class."""
    domains = []
    for name, some in of_domains.items():
        groups = np.repeat(some, 3)
        labels = np.arange(len(groups)) % 2
        labels = np.sort(labels) if by_class else labels
        domains.append(Domain(name, np.zeros((len(groups), 4, 4, 3), np.uint8), labels, groups))
    about = card("EmojiStyles").model_copy(
        update={"name": "Patients", "classes": ("a", "b"), "domains": {one.name: len(one) for one in domains},
                "input_shape": (3, 4, 4), "groupings": {}}
    )  # fmt: skip
    write_arrays(domains, about, root / "packs" / "Patients")


def test_groups_that_only_some_domains_have_stay_on_one_side_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    patients(tmp_path, {"one": range(0, 20), "two": range(10, 30), "three": [*range(5), *range(15, 35)]})
    for trial in range(5):
        task = LeaveOut(("three",), grouped=True).task("Patients", trial, 0.4)
        groups = {
            split.name: {int(load("Patients")[split.domain].groups[i]) for i in split.indices} for split in task.splits
        }
        trained = groups["one/in"] | groups["two/in"]
        assert not trained & (groups["one/out"] | groups["two/out"] | groups["three/in"] | groups["three/out"])
        assert groups["three/in"] and groups["three/out"] and not groups["three/in"] & groups["three/out"]


def test_of_groups_that_no_domain_shares_each_holds_out_a_share_and_the_tested_one_tests_all(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    patients(tmp_path, {"one": range(0, 10), "two": range(10, 15), "three": range(15, 35)})
    for trial in range(5):
        task = LeaveOut(("three",), grouped=True).task("Patients", trial, 0.2)
        count = {
            split.name: len({int(load("Patients")[split.domain].groups[i]) for i in split.indices})
            for split in task.splits
        }
        assert count == {"one/in": 8, "one/out": 2, "two/in": 4, "two/out": 1, "three/in": 16, "three/out": 4}
        assert sum(len(split.indices) for split in task.splits) == 3 * 35, "no image is left out"
    with pytest.raises(DataError, match=r"too few groups to hold out 0\.1 of them; add groups, or"):
        LeaveOut(("three",), grouped=True).task("Patients", 0, 0.1)


def test_leave_group_out_takes_neighbours_the_card_s_clusters_or_its_first_grouping():
    specs = PROTOCOLS["leave-group-out"](card("RotatedDigits"))
    assert [spec.test for spec in specs] == [("0", "15"), ("30", "45"), ("60", "75")]
    clustered = card("RotatedDigits").model_copy(
        update={"clusters": {"low": ("0", "15", "30"), "high": ("45", "60", "75")}}
    )
    assert [spec.test for spec in PROTOCOLS["leave-group-out"](clustered)] == [("0", "15", "30"), ("45", "60", "75")]
    grouped = clustered.model_copy(update={"groupings": {"ends": (("75", "0"), ("15", "30", "45", "60"))}})
    assert [spec.test for spec in PROTOCOLS["leave-group-out"](grouped)] == [("0", "75"), ("15", "30", "45", "60")]


def registered(name):
    """The card in the package, whatever is prepared on this machine."""
    return DATASETS[name].card


@pytest.mark.parametrize(
    ("dataset", "grouping", "groups"),
    [
        ("DomainNet", "pairs", "clipart infograph, painting quickdraw, real sketch"),
        ("DomainNet", "threes", "quickdraw real sketch, clipart infograph painting"),
        ("NICO++-public", "pairs", "autumn rock, dim grass, outdoor water"),
        ("NICO++-public", "threes", "grass outdoor water, autumn rock dim"),
    ],
)
def test_domainbed_v2_s_groups_are_left_out_by_name(dataset, grouping, groups):
    expected = [LeaveOut(tuple(group.split())) for group in groups.split(", ")]
    assert PROTOCOLS[f"leave-group-out:{grouping}"](registered(dataset)) == expected
    if grouping == "pairs":
        assert PROTOCOLS["leave-group-out"](registered(dataset)) == expected, "the first grouping is the usual one"


def test_a_grouping_that_is_not_on_the_card_is_refused():
    with pytest.raises(UnknownNameError, match=r"DomainNet has no grouping 'pair'\. Did you mean pairs"):
        PROTOCOLS["leave-group-out:pair"](registered("DomainNet"))
    with pytest.raises(UnknownNameError, match=r"PACS has no grouping 'pairs'\. It has no groupings"):
        PROTOCOLS["leave-group-out:pairs"](registered("PACS"))


@pytest.mark.parametrize(
    ("split", "train", "test"),
    [
        ("split-1", "grass water rock autumn indoor dim", "sand winter outdoor dark"),
        ("split-2", "sand grass water rock indoor outdoor", "autumn winter dark dim"),
        ("split-3", "sand winter dark grass water autumn", "rock indoor outdoor dim"),
    ],
)
def test_the_classic_splits_of_nico_plus_plus(split, train, test):
    (spec,) = PROTOCOLS[f"fixed:{split}"](registered("NICO++"))
    assert (set(spec.train), set(spec.test)) == (set(train.split()), set(test.split()))
    assert spec in PROTOCOLS["fixed"](registered("NICO++"))
    common = {name for names in registered("NICO++").clusters.values() for name in names}
    assert set(spec.train) | set(spec.test) == common
    assert TargetTrained(spec.test) in PROTOCOLS["target-trained"](registered("NICO++")), "the reference of this split"


def test_the_fixed_domains_of_ood_bench():
    specs = {name: PROTOCOLS["fixed"](registered(name)) for name in ("Camelyon17", "NICO", "CelebA")}
    assert specs["Camelyon17"] == [
        Fixed(("hospital_0", "hospital_3", "hospital_4"), ("hospital_2",), validation=("hospital_1",))
    ]
    assert specs["NICO"] == [Fixed(("train1", "train2"), ("test",), validation=("val",))]
    assert specs["CelebA"] == [Fixed(("tr_env1", "tr_env2"), ("te_env",))]
    with pytest.raises(UnknownNameError, match=r"NICO has no split 'oodbench'\. Did you mean ood-bench"):
        PROTOCOLS["fixed:oodbench"](registered("NICO"))


def test_k_of_the_four_sources_of_cifar_10_w_test_all_180_sets():
    known = registered("CIFAR-10-W")
    sources, tested = ("Yandex-C", "Yandex-CC", "Diff-C", "Diff-CC"), tuple(known.domains)[4:]
    assert [spec.train for spec in PROTOCOLS["single-source"](known)] == [(name,) for name in sources]
    for k, count in ((1, 4), (2, 6), (3, 4), (4, 1)):
        specs = PROTOCOLS[f"k-sources:{k},cap=100"](known)
        assert len({spec.train for spec in specs}) == len(specs) == count
        assert all(len(spec.train) == k and spec.test == tested and spec.cap == 100 for spec in specs)
    with pytest.raises(DataError, match="5 of CIFAR-10-W's domains cannot train; between 1 and 4 can"):
        PROTOCOLS["k-sources:5"](known)
    without = known.model_copy(update={"domains": {name: 1 for name in known.domains if name != "Diff-C"}})
    with pytest.raises(DataError, match="CIFAR-10-W as prepared here has no domain Diff-C, which this needs"):
        PROTOCOLS["k-sources:2"](without)


def test_one_source_may_have_as_many_images_as_four():
    for k in (1, 4):
        for spec in PROTOCOLS[f"k-sources:{k},equal=true"](card("RotatedDigits")):
            assert spec.total == 299, "those of the smallest domain"
            task = spec.task("RotatedDigits", 0, 0.2)
            counts = {role: sum(len(split.indices) for split in task.of_role(role)) for role in ("train", "validation")}
            assert abs(counts["train"] - 239) <= k and abs(counts["validation"] - 60) <= k
            assert set(task.test_domains) == set(card("RotatedDigits").domains) - set(spec.train)
    with pytest.raises(DataError, match=r"NICO\+\+-public have is known once it is prepared"):
        PROTOCOLS["k-sources:2,equal=true"](registered("NICO++-public"))


def test_sources_with_validation_domains_train_whole_or_by_shares():
    split = FixedDomains(train=("30", "0"), validation=("15",), test=("75",))
    known = card("RotatedDigits").model_copy(update={"splits": {"mine": split}})
    (spec,) = PROTOCOLS["k-sources"](known)
    assert spec == Fixed(("0", "30"), ("75",), validation=("15",)), "in the dataset's order"
    (halves,) = PROTOCOLS["k-sources:2,equal=true"](known)
    task = halves.task("RotatedDigits", 0, 0.2)
    assert [(s.name, len(s.indices)) for s in task.of_role("train")] == [("0/all", 150), ("30/all", 150)]
    several = known.model_copy(update={"splits": {"mine": split, "yours": split}})
    with pytest.raises(DataError, match="has the splits mine and yours, so it is open which domains train"):
        PROTOCOLS["single-source"](several)


def test_protocols_take_parameters_after_a_colon():
    by_name = PROTOCOLS["flexible-random:minor=3,dominant=1,cap=9"](card("EmojiStyles"))
    in_order = PROTOCOLS["flexible-random:1, 3, 9"](card("EmojiStyles"))
    assert by_name == in_order == [Flexible(compositional=False, dominant=1, minor=3, cap=9)]
    with pytest.raises(UnknownNameError, match=r"no parameter for 'fast=1'; it has k, cap, equal"):
        PROTOCOLS["k-sources:fast=1"]
    with pytest.raises(UnknownNameError, match=r"leave-pair-out has no parameter for '2'; it has none"):
        PROTOCOLS["leave-pair-out:2"]
    with pytest.raises(DataError, match="Parameter k of protocol k-sources cannot be 'two'"):
        PROTOCOLS["k-sources:two"]
    with pytest.raises(UnknownNameError, match=r"There is no protocol 'k-source'\. Did you mean k-sources"):
        PROTOCOLS["k-source:2"]


def test_every_pair_is_left_out_once():
    specs = PROTOCOLS["leave-pair-out"](card("ColoredDigits"))
    assert [spec.test for spec in specs] == [("+90%", "+80%"), ("+90%", "-90%"), ("+80%", "-90%")]


def test_fixed_domains_with_a_validation_domain_train_on_everything():
    task = Fixed(("0", "15"), ("75",), validation=("30",)).task("RotatedDigits", 0, 0.2)
    assert [(s.name, s.role, len(s.indices)) for s in task.splits] == [
        ("0/all", "train", 300),
        ("15/all", "train", 300),
        ("30/all", "validation", 300),
        ("75/all", "test", 299),
    ]


def test_fixed_domains_without_one_hold_a_part_out_and_may_be_limited():
    task = Fixed(("0", "15"), ("75",), cap=10, total=100).task("RotatedDigits", 0, 0.2)
    assert [(s.name, s.role, len(s.indices)) for s in task.splits] == [
        ("0/in", "train", 40),
        ("0/out", "validation", 10),
        ("15/in", "train", 40),
        ("15/out", "validation", 10),
        ("75/all", "test", 100),
    ]
    unlimited = Fixed(("0", "15"), ("75",)).task("RotatedDigits", 0, 0.2)
    for some, whole in zip(task.splits[:4], unlimited.splits[:4], strict=True):
        assert set(some.indices) < set(whole.indices), "the same images train and validate, only fewer"
    labels = load("RotatedDigits")["75"].labels[task.of_role("test")[0].indices]
    assert np.bincount(labels).tolist() == [10] * 10
    with pytest.raises(DataError, match="'0' of RotatedDigits cannot be both trained on and tested"):
        Fixed(("0",), ("0", "15")).task("RotatedDigits", 0, 0.2)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Fixed(("0", "15"), ("75",), ("15",)), "'15' of RotatedDigits cannot be both trained on and validated on"),
        (Fixed(("0",), ("75",), ("75",)), "'75' of RotatedDigits cannot be both validated on and tested"),
    ],
)
def test_a_whole_domain_has_one_role(spec, words):
    with pytest.raises(DataError, match=f"{words}; name it only once"):
        spec.task("RotatedDigits", 0, 0.2)


def test_no_split_of_a_card_gives_a_domain_two_roles():
    for name in DATASETS:
        for split in DATASETS[name].card.splits.values():
            roles = [*split.train, *split.validation, *split.test]
            assert len(set(roles)) == len(roles), name


@pytest.mark.parametrize("compositional", [False, True])
def test_flexible_settings_never_test_a_class_in_a_domain_that_trains_it(compositional):
    spec = Flexible(compositional, dominant=2, minor=2, exclusive=3, cap=7)
    roles = spec.assignment("EmojiStyles")
    task = spec.task("EmojiStyles", 0, 0.2)
    labels = {domain.name: domain.labels for domain in load("EmojiStyles").domains}
    pairs = {
        role: {(split.domain, int(labels[split.domain][i])) for split in task.of_role(role) for i in split.indices}
        for role in ("train", "validation", "test")
    }
    assert not (pairs["train"] | pairs["validation"]) & pairs["test"]
    dominant = {name for by_domain in roles.values() for name, role in by_domain.items() if role == "dominant"}
    tested = {name for by_domain in roles.values() for name, role in by_domain.items() if role == "test"}
    assert bool(dominant & tested) != compositional
    for label, by_domain in roles.items():
        counted = list(by_domain.values())
        assert (counted.count("dominant"), counted.count("train")) == (2, 2)
        for split in task.of_role("test"):
            assert (labels[split.domain][split.indices] == label).sum() <= 7
    whole = {
        (name, label) for label, by_domain in roles.items() for name, role in by_domain.items() if role == "dominant"
    }
    for name, label in whole:
        used = [s.indices for s in task.splits if s.domain == name and s.role in ("train", "validation")]
        found = (labels[name][np.concatenate(used)] == label).sum()
        assert found == (labels[name] == label).sum(), "all images of a dominant domain"


def test_dominant_domains_are_common_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    patients(tmp_path, {name: range(10) for name in ("a", "b", "c", "uni_1", "uni_2", "uni_3")})
    for seed in range(20):
        roles = Flexible(compositional=False, dominant=2, minor=1, seed=seed).assignment("Patients")
        dominant = {name for one in roles.values() for name, role in one.items() if role == "dominant"}
        assert dominant <= {"a", "b", "c"}


def test_flexible_settings_say_when_there_are_too_few_domains():
    with pytest.raises(DataError, match="'animal' of EmojiStyles is in 7 domains, too few for 2 dominant, 12 minor"):
        Flexible(compositional=False).task("EmojiStyles", 0, 0.2)


def test_target_trained_divides_seven_to_one_to_two():
    task = TargetTrained(("0",)).task("RotatedDigits", 0, 0.2)
    assert [(s.name, s.role, len(s.indices)) for s in task.splits] == [
        ("0/in", "train", 210),
        ("0/out", "validation", 30),
        ("0/rest", "test", 60),
    ]


def test_whole_domains_are_tested_where_no_oracle_is_to_see_a_part_of_them():
    (spec, *_) = PROTOCOLS["leave-one-domain-out:whole=true"](card("ColoredDigits"))
    task = spec.task("ColoredDigits", 1, 0.2)
    whole = [split for split in task.splits if split.role == "test"]
    assert [(split.name, len(split.indices)) for split in whole] == [
        ("+90%/all", card("ColoredDigits").domains["+90%"])
    ]
    halves = LeaveOut(("+90%",)).task("ColoredDigits", 1, 0.2)
    for split, other in zip(task.splits[1:], halves.splits[2:], strict=True):
        assert split.name == other.name and (split.indices == other.indices).all()
    assert spec.family() != LeaveOut(("+90%",)).family()
    assert spec_of(json.loads(json.dumps(spec.describe()))) == spec
    assert "whole" not in LeaveOut(("+90%",)).describe(), "descriptions of before stay as they were"


def test_groups_of_whole_domains():
    specs = PROTOCOLS["leave-group-out:pairs,whole=true"](card("DomainNet"))
    assert [spec.test for spec in specs] == [("clipart", "infograph"), ("painting", "quickdraw"), ("real", "sketch")]
    assert all(spec.whole for spec in specs)


def test_sources_are_taken_among_the_named_ones():
    known = card("CIFAR-10-W")
    (pair,) = PROTOCOLS["k-sources:2,among=Diff-C+Diff-CC"](known)
    assert pair.train == ("Diff-C", "Diff-CC")
    assert len(pair.test) == 180 and not {"Yandex-C", "Diff-C"} & set(pair.test)
    with pytest.raises(DataError, match="only Yandex-C, Yandex-CC, Diff-C, Diff-CC train"):
        PROTOCOLS["k-sources:1,among=Google-01"](known)
    with pytest.raises(DataError, match="between 1 and 2 can"):
        PROTOCOLS["k-sources:3,among=Diff-C+Diff-CC"](known)


def test_sources_whose_names_have_a_plus_can_be_named():
    known = card("ColoredDigits")
    for names in (("+90%",), ("+90%", "+80%"), ("+80%", "-90%")):
        (spec,) = PROTOCOLS[f"k-sources:{len(names)},among={'+'.join(names)}"](known)
        assert spec.train == names
    with pytest.raises(DataError, match="ColoredDigits as prepared here has no domain blue"):
        PROTOCOLS["k-sources:1,among=+90%+blue"](known)


def test_no_minor_domain_at_all_can_be_asked_for():
    """Each of 11 classes has two of seven styles that train, and five that test it."""
    (spec,) = PROTOCOLS["flexible-random:minor=0"](card("EmojiStyles"))
    assert spec.minor == 0
    assert all(sorted(by_domain.values()) == ["dominant"] * 2 + ["test"] * 5
               for by_domain in spec.assignment("EmojiStyles").values())  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("k-sources:1,cap=0", "cap is 1 or more, not 0"),
        ("flexible-random:cap=-1", "cap is 1 or more, not -1"),
        ("flexible-random:dominant=0", "dominant is 1 or more, not 0"),
        ("flexible-random:minor=-1", "minor is 0 or more, not -1"),
        ("flexible-compositional:exclusive=0", "exclusive is 1 or more, not 0"),
        ("k-sources:true", "Parameter k of protocol k-sources cannot be 'true'"),
        ("k-sources:2,k=3", "Parameter k of protocol k-sources is given twice in '2,k=3'"),
        ("k-sources:cap=5,3", "Parameter cap of protocol k-sources is given twice"),
    ],
)
def test_numbers_that_no_setting_has_are_refused(protocol, words):
    with pytest.raises(DataError, match=words):
        PROTOCOLS[protocol](card("EmojiStyles"))


def test_no_split_is_empty_and_no_training_image_is_left_out_silently(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    patients(tmp_path, {"one": [1], "two": range(20), "three": range(20)})
    with pytest.raises(DataError, match="Domain 'one' of Patients has 3 examples, too few for 7:1:2"):
        TargetTrained(("two", "one")).task("Patients", 0, 0.2)
    for seed in range(10):
        flexible = Flexible(compositional=False, dominant=1, minor=1, cap=50, seed=seed)
        trains = any(by_domain["one"] != "test" for by_domain in flexible.assignment("Patients").values())
        if trains:
            with pytest.raises(DataError, match=r"Domain 'one' of Patients has [123] examples?, too few to hold out"):
                flexible.task("Patients", 0, 0.2)
        else:
            assert all(len(split.indices) for split in flexible.task("Patients", 0, 0.2).splits)
    with pytest.raises(DataError, match="Domain 'one' of Patients has 3 examples, of which 0 cannot be used"):
        Fixed(("one", "two"), ("three",), total=1).task("Patients", 0, 0.2)


def test_a_grouped_domain_says_how_much_of_it_can_be_given_unlabelled():
    """Half of the emoji that no style trains on are held out, so less than half of them can be given."""
    with pytest.raises(DataError, match=r"since 0\.5 are held out and the rest is tested; give less than 0\.5\."):
        LeaveOut(("noto",), grouped=True, adapt=0.6).task("EmojiStyles", 0, 0.2)


def test_of_groups_whole_ones_are_given_unlabelled_and_of_every_class(tmp_path, monkeypatch):
    """A pack has its images class by class: the first of them would all be of one, and the last of another."""
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    patients(tmp_path, {"one": range(10), "two": range(10, 20), "three": range(20, 40)}, by_class=True)
    domain = load("Patients")["three"]
    task = LeaveOut(("three",), grouped=True, adapt=0.4).task("Patients", 0, 0.2)
    parts = {split.part: split.indices for split in task.splits if split.domain == "three"}
    groups = {part: set(domain.groups[indices].tolist()) for part, indices in parts.items()}
    assert {part: len(found) for part, found in groups.items()} == {"rest": 8, "in": 8, "out": 4}
    assert len(set.union(*groups.values())) == 20, "no patient is in two parts"
    shares = {part: domain.labels[indices].mean() for part, indices in parts.items()}
    assert all(0.25 <= share <= 0.75 for share in shares.values()), "every part has both classes"


def test_a_single_group_cannot_be_given_and_tested(tmp_path, monkeypatch):
    monkeypatch.setenv("SHIFTBED_DATA", str(tmp_path))
    patients(tmp_path, {"one": range(10), "two": range(10, 20), "three": range(20, 22)})
    with pytest.raises(DataError, match=r"'three' of Patients has too few groups to give 0\.3 of it unlabelled"):
        LeaveOut(("three",), grouped=True, adapt=0.3).task("Patients", 0, 0.2)
