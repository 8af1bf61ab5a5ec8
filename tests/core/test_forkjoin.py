"""Clocks of programs that fork and join."""

from megatile.core.forkjoin import Agent, Strand, is_ordered, rendezvous, settled


def family(children: int) -> tuple[Strand, list[Strand]]:
    root = Strand(None)
    root.fork()
    return root, [Strand(root) for _ in range(children)]


def test_siblings_are_unordered_until_they_meet() -> None:
    _, (a, b, c) = family(3)
    assert not is_ordered(a, a.time, b)
    rendezvous([a, b])
    assert is_ordered(a, 0, b)
    assert is_ordered(b, 0, a)
    assert not is_ordered(a, a.time, b)
    assert not is_ordered(a, 0, c)


def test_what_the_parent_did_before_is_ordered() -> None:
    root, (a, _) = family(2)
    assert is_ordered(root, 0, a)


def test_children_are_ordered_before_what_follows_the_join() -> None:
    root, (a, b) = family(2)
    time = a.time
    for child in (a, b):
        child.end()
    root.join()
    root.fork()
    later = Strand(root)
    assert is_ordered(a, time, root)
    assert is_ordered(a, time, later)


def test_release_and_acquire() -> None:
    _, (a, b, c) = family(3)
    b.acquire(a.release())
    assert is_ordered(a, 0, b)
    assert not is_ordered(a, a.time, b)
    c.acquire(b.release())
    assert is_ordered(a, 0, c)


def test_grandchildren_know_what_their_parents_acquired() -> None:
    _, (a, b) = family(2)
    b.acquire(a.release())
    b.fork()
    inner = Strand(b)
    assert is_ordered(a, 0, inner)
    a.fork()
    other = Strand(a)
    assert not is_ordered(other, other.time, inner)
    inner.acquire(other.release())
    assert is_ordered(other, 0, inner)
    assert is_ordered(a, a.fork_time, inner)


def test_messages_arrive_on_their_own() -> None:
    root, (a, b) = family(2)
    messages = Agent(root)
    b.acquire(a.release())
    assert not is_ordered(messages, 0, b)
    rendezvous([a, b], [messages])
    assert is_ordered(messages, 0, b)
    assert not is_ordered(messages, messages.time, b)


def test_an_ended_child_is_ordered_before_its_siblings_only_if_they_know() -> None:
    root = Strand(None)
    root.fork()
    a, b, c = Strand(root), Strand(root), Strand(root)
    b.acquire(a.release())
    late = a.time
    a.end()
    assert is_ordered(a, 0, b)
    assert not is_ordered(a, late, b)
    assert not is_ordered(a, 0, c)
    b.end()
    c.end()
    root.join()
    root.fork()
    assert is_ordered(a, late, Strand(root))


def test_what_a_child_told_others_stays_known_when_it_has_ended() -> None:
    root = Strand(None)
    root.fork()
    left, right = Strand(root), Strand(root)
    left.exchanges = right.exchanges = True
    left.fork()
    right.fork()
    teller, listener = Strand(left), Strand(right)
    time = teller.time
    listener.acquire(teller.release())
    teller.end()
    left.join()
    left.end()
    assert is_ordered(*settled(teller, time), listener)
    listener.end()
    assert not is_ordered(teller, time, right)
    right.join()
    assert is_ordered(teller, time, right)
