"""Dry runs: the result of `partition` without the partitions."""

from contextlib import closing

import pytest
from green_ctx_torch import dry_run, partition


def test_a_dry_run_is_what_partition_gives():
    for division in [
        {"decode": 17, "prefill": "rest"},
        {"prefill": "rest", "decode": 17},
        {"decode": "32..", "prefill": "..100", "other": 16},
        [("a", 8), ("b", "24")],
    ]:
        expected = dry_run(division)
        assert expected.fits and expected.reason is None and expected.nearest == []
        with closing(partition(division)) as parts:
            given = {name: (part.share, part.floor, part.sm_count) for name, part in parts.items()}
        groups = expected.groups
        assert list(groups) == list(given)
        assert {name: (one.share, one.floor, one.sm_count) for name, one in groups.items()} == given
        assert [group.name for group in groups.values()] == list(groups)


def test_what_remains_is_said():
    found = dry_run({"a": 16, "b": 24})
    assert (found.unit, found.remainder, found.free_for_floors) == (8, 92, 92)
    assert found.quarantined == 0
    assert repr(found) == "<DryRun: a: 16 SMs, b: 24 SMs, 92 SMs free for floors>"
    assert repr(found.groups["a"]) == "<DryRunGroup a: 16 SMs>"
    rest = dry_run({"a": 16, "b": "rest"})
    assert (rest.remainder, rest.free_for_floors, rest.groups["b"].share) == (116, 0, "rest")
    assert dry_run({"a": 2}, fine=True).unit == 2
    shared = dry_run({"decode": "32..", "prefill": "..100"})
    assert repr(shared.groups["decode"]) == "<DryRunGroup decode: 32 to 132 SMs>"


@pytest.mark.parametrize(
    "arguments",
    [
        ({"a": 133},),
        ({"a": 64, "b": 64, "c": 64},),
        ({"a": 132, "b": "rest"},),
    ],
)
def test_what_does_not_fit_has_the_reason_of_partition(arguments):
    found = dry_run(*arguments)
    assert not found.fits and found.groups == {}
    assert found.unit is found.remainder is found.free_for_floors is found.quarantined is None
    with pytest.raises(ValueError) as raised:
        partition(*arguments)
    assert found.reason == str(raised.value)
    assert repr(found) == f"<DryRun: does not fit: {found.reason}>"


def test_others_are_taken_into_account():
    with closing(partition({"decode": 100})):
        found = dry_run({"a": 16, "b": 24})
        assert not found.fits and "held by decode (100 SMs)" in found.reason
        assert found.nearest == ["16", "16"]
        assert dry_run({"a": 16}).free_for_floors == 16
        fine = dry_run({"a": 2}, fine=True)
        assert not fine.fits and "coarse units, and some of them are in use" in fine.reason
    # Nothing was taken.
    assert dry_run({"a": 132}).fits
