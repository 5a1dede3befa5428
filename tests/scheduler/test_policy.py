from hypothesis import given
from hypothesis import strategies as st

from tokenmill.scheduler.policy import ByPriority, Entry, FairShare, FirstCome


def fill(policy, entries):
    for entry in entries:
        policy.add(entry)
    return policy


def drain(policy, now=0.0, cost=0.0):
    order = []
    while (entry := policy.first(now)) is not None:
        policy.remove(entry)
        policy.served(entry.key, cost)
        order.append(entry.item)
    return order


def test_first_come_is_in_order_of_arrival():
    assert drain(fill(FirstCome(), [Entry("b", 2, 0), Entry("a", 1, 0)])) == ["a", "b"]


def test_one_who_comes_back_keeps_its_place():
    policy = fill(FirstCome(), [Entry("a", 1, 0), Entry("b", 2, 0)])
    first = policy.first(0)
    policy.remove(first)
    policy.add(first)
    assert policy.first(0).item == "a"


def test_priority_goes_before_arrival():
    entries = [Entry("low", 1, 0), Entry("high", 2, 0, priority=1), Entry("late", 3, 0, 1)]
    assert drain(fill(ByPriority(), entries)) == ["high", "late", "low"]


def test_a_long_wait_outweighs_priority():
    policy = fill(ByPriority(ageing=10), [Entry("old", 1, 0.0)])
    policy.add(Entry("new", 2, 25.0, priority=2))
    assert policy.first(25.0).item == "old"
    policy.add(Entry("urgent", 3, 25.0, priority=3))
    assert policy.first(25.0).item == "urgent"


def test_the_key_that_was_served_least_goes_first():
    policy = fill(FairShare(), [Entry(f"a{i}", i, 0, key="a") for i in range(4)])
    fill(policy, [Entry(f"b{i}", 10 + i, 0, key="b") for i in range(2)])
    assert drain(policy, cost=5) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_an_idle_key_hoards_nothing():
    policy = fill(FairShare(), [Entry("a", 1, 0, key="a"), Entry("b", 2, 0, key="b")])
    assert drain(policy) == ["a", "b"]
    policy.stopped("b")
    policy.served("a", 1000)
    fill(policy, [Entry("b2", 3, 0, key="b"), Entry("a2", 4, 0, key="a")])
    fill(policy, [Entry("b3", 5, 0, key="b")])
    assert drain(policy, cost=10) == ["b2", "a2", "b3"]


def test_shares_go_on_where_everybody_was_idle():
    policy = fill(FairShare(), [Entry("a", 1, 0, key="a")])
    assert drain(policy, cost=100) == ["a"]
    policy.stopped("a")
    fill(policy, [Entry("b", 2, 0, key="b"), Entry("a", 3, 0, key="a")])
    assert drain(policy, cost=1) == ["b", "a"]


def test_the_position_counts_those_before():
    entries = [Entry("a", 1, 0), Entry("b", 2, 0), Entry("c", 3, 0, priority=5)]
    assert [fill(ByPriority(), entries).position(entry, 0) for entry in entries] == [1, 2, 0]


@given(st.lists(st.sampled_from("ab"), min_size=20, max_size=80), st.integers(1, 9))
def test_two_keys_that_wait_are_served_alike(keys, cost):
    policy = fill(FairShare(), [Entry(key, i, 0, key=key) for i, key in enumerate(keys)])
    served = {"a": 0, "b": 0}
    while {entry.key for entry in policy} == {"a", "b"}:
        entry = policy.first(0)
        policy.remove(entry)
        policy.served(entry.key, cost)
        served[entry.key] += cost
        assert abs(served["a"] - served["b"]) <= cost
