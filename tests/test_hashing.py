import pytest

from shiftbed.hashing import canonical, seed_hash


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 0), 785910682),
        ((0, 0), 894182419),
        ((0, 1), 1514274641),
        ((0, 2), 1325548499),
        ((1, 1), 1442673865),
        ((2, 0), 472130416),
        (("PACS", "ERM", [0], 0, 0), 94828300),
    ],
)
def test_seed_hash_equals_domainbeds(values, expected):
    assert seed_hash(*values) == expected


def test_canonical_json_does_not_depend_on_the_order_of_keys():
    assert canonical({"b": 1, "a": [0.1, None]}) == canonical({"a": [0.1, None], "b": 1}) == b'{"a":[0.1,null],"b":1}'


def test_canonical_json_refuses_what_json_does_not_have():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical(float("nan"))
