"""``runtime/agreement.py``: what ranks compare before a call, without processes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_records_are_sent_again_where_ranks_mean_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatile.runtime import agreement

    class Group:
        """Stands for a group of two processes."""

    compared: list[dict[str, int]] = []

    def all_records(self, record, *_):
        compared.append(record)
        return agreement.Agreement([record] * 2)

    members = agreement.Members.__new__(agreement.Members)
    members.group, members.size, members.rank = Group(), 2, 0
    monkeypatch.setattr(agreement, "make_board", lambda *_: None)
    alike = iter([False, True, False])
    monkeypatch.setattr(agreement.Members, "_same_number", lambda *_: next(alike))
    monkeypatch.setattr(agreement.Members, "_compared", all_records)
    calls = [members.agree({"rows": 3}, None, torch.device("cpu"), (), cached=True) for _ in range(3)]
    assert calls == [[{"rows": 3}] * 2] * 3
    assert len(compared) == 2  # not in the second call, in which both had the number of the first


def test_members_of_a_process_group() -> None:
    from megatile.core.errors import MegatileError
    from megatile.runtime.agreement import Members

    dist = torch.distributed
    with pytest.raises(MegatileError, match=r"group must be a .* process group, got str"):
        Members("all")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for group in (None, dist.group.WORLD):
            members = Members(group)
            assert (members.rank, members.size) == (0, 1)
    finally:
        dist.destroy_process_group()
