import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.scheduler.policy import ByPriority, FairShare, FirstCome, PolicyName, new_policy
from tokenmill.scheduler.sequence import Sequence


def waiting(name, order, *, priority=0, client="", since=0.0):
    sequence = Sequence(name, [1], priority=priority, client=client)
    sequence.order, sequence.waiting_since = order, since
    return sequence


def fill(policy, sequences):
    for sequence in sequences:
        policy.arrived(sequence)
        policy.add(sequence)
    return policy


def drain(policy, cost=0):
    """Starts everybody, serves each so many tokens, and lets them leave."""
    order = []
    while (sequence := policy.first()) is not None:
        policy.remove(sequence)
        policy.served(sequence, cost)
        order.append(sequence.request_id)
    return order


def queue(client, count, first_order=0):
    return [waiting(f"{client}{i}", first_order + i, client=client) for i in range(count)]


@pytest.mark.parametrize("name", PolicyName)
def test_an_empty_queue_has_no_first(name):
    policy = new_policy(name)
    assert (policy.first(), len(policy), list(policy)) == (None, 0, [])


@pytest.mark.parametrize("name", PolicyName)
def test_the_first_stays_until_it_is_removed(name):
    one, two = waiting("one", 0), waiting("two", 1)
    policy = fill(new_policy(name), [one, two])
    assert (policy.first(), policy.first()) == (one, one)
    policy.remove(one)
    assert (policy.first(), one in policy, two in policy, len(policy)) == (two, False, True, 1)


@pytest.mark.parametrize("name", PolicyName)
def test_who_is_taken_out_of_the_middle_is_never_first(name):
    one, two, three = (waiting(str(order), order) for order in range(3))
    policy = fill(new_policy(name), [one, two, three])
    policy.remove(two)
    assert drain(policy) == ["0", "2"]


@pytest.mark.parametrize("name", PolicyName)
def test_one_who_comes_back_keeps_its_place(name):
    one, two = waiting("one", 0), waiting("two", 1)
    policy = fill(new_policy(name), [one, two])
    policy.remove(one)
    policy.add(one)
    assert policy.first() is one


def test_first_come_is_in_order_of_arrival():
    sequences = [waiting("b", 2, priority=5), waiting("a", 1, since=9.0)]
    assert drain(fill(FirstCome(), sequences)) == ["a", "b"]


def test_priority_goes_before_arrival():
    sequences = [waiting("low", 1), waiting("high", 2, priority=1), waiting("late", 3, priority=1)]
    assert drain(fill(ByPriority(), sequences)) == ["high", "late", "low"]


def test_ten_seconds_of_waiting_weigh_as_much_as_a_step_of_priority():
    policy = fill(ByPriority(ageing=10), [waiting("old", 1, since=0.0)])
    fill(policy, [waiting("new", 2, priority=2, since=20.0)])
    fill(policy, [waiting("urgent", 3, priority=2, since=19.0)])
    assert drain(policy) == ["urgent", "old", "new"]


def test_what_was_waited_before_counts():
    parked = waiting("parked", 1, since=20.0)
    parked.waited = 12.0
    policy = fill(ByPriority(ageing=10), [parked, waiting("new", 2, priority=1, since=19.0)])
    assert drain(policy) == ["parked", "new"]


def test_a_higher_priority_outranks_who_has_not_waited_for_the_difference():
    policy = ByPriority(ageing=10)
    low, high = waiting("low", 1), waiting("high", 2, priority=2)
    assert policy.outranks(high, low)
    assert not policy.outranks(low, high)
    assert not policy.outranks(waiting("other", 3), low)
    low.waited = 19.9
    assert policy.outranks(high, low)
    low.waited = 20.0
    assert not policy.outranks(high, low)


def test_how_long_the_higher_one_waits_does_not_matter():
    policy = ByPriority(ageing=10)
    low, high = waiting("low", 1), waiting("high", 2, priority=1)
    low.waited, high.waited = 10.0, 500.0
    assert not policy.outranks(high, low)


@pytest.mark.parametrize(
    ("name", "preempts"),
    [(PolicyName.FIRST_COME, False), (PolicyName.PRIORITY, True), (PolicyName.FAIR, False)],
)
def test_only_priority_takes_rows_away(name, preempts):
    assert new_policy(name).preempts is preempts


def test_the_client_that_was_served_least_goes_first():
    policy = fill(FairShare(), [*queue("a", 4), *queue("b", 2, first_order=10)])
    assert drain(policy, cost=5) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_within_a_client_it_is_as_by_priority():
    low, high = waiting("low", 1, client="a"), waiting("high", 2, client="a", priority=1)
    late = waiting("late", 3, client="a", priority=1, since=10.5)
    assert drain(fill(FairShare(ageing=10), [low, high, late])) == ["high", "low", "late"]


def test_an_idle_client_hoards_nothing():
    a, b = queue("a", 4), queue("b", 3, first_order=10)
    policy = fill(FairShare(), [a[0], b[0]])
    assert drain(policy) == ["a0", "b0"]
    policy.left(b[0])
    policy.served(a[0], 1000)
    fill(policy, [a[1], b[1], b[2], a[2]])
    assert drain(policy, cost=10) == ["a1", "b1", "a2", "b2"]


def test_a_client_that_asks_for_little_hoards_nothing_either():
    slow, eager = queue("slow", 4), queue("eager", 4, first_order=10)
    policy = fill(FairShare(), [slow[0]])
    policy.remove(slow[0])  # it runs all the time, and takes a token now and then
    fill(policy, eager[:2])
    policy.remove(eager[0])
    policy.served(eager[0], 1000)
    fill(policy, slow[1:])
    policy.remove(eager[1])
    fill(policy, eager[2:])
    assert drain(policy, cost=10) == ["slow1", "eager2", "slow2", "eager3", "slow3"]


def test_a_client_that_comes_back_finds_its_counter_if_that_is_higher():
    a, b = queue("a", 3), queue("b", 4, first_order=10)
    policy = fill(FairShare(), [a[0], *b])
    policy.remove(a[0])
    policy.served(a[0], 25)
    policy.left(a[0])
    policy.arrived(a[1])
    policy.add(a[1])
    assert drain(policy, cost=10) == ["b0", "b1", "b2", "a1", "b3"]


def test_a_new_client_starts_where_the_last_one_stands_when_nobody_waits():
    a, b = queue("a", 3), queue("b", 3, first_order=10)
    policy = fill(FairShare(), [a[0]])
    policy.remove(a[0])
    policy.served(a[0], 1000)
    fill(policy, [b[0], a[1], b[1], a[2]])
    assert drain(policy, cost=10) == ["a1", "b0", "a2", "b1"]


def test_counters_of_clients_that_are_gone_do_not_pile_up():
    policy = FairShare()
    for order in range(1000):
        sequence = waiting("r", order, client=f"client {order}")
        fill(policy, [sequence])
        policy.remove(sequence)
        policy.served(sequence, 7)
        policy.left(sequence)
    assert len(policy._served) <= 70


def test_a_client_that_had_much_is_remembered_while_others_come_and_go():
    a, b = queue("a", 2), queue("b", 2, first_order=1000)
    policy = fill(FairShare(), [a[0], *b])
    policy.remove(a[0])
    policy.served(a[0], 100)
    policy.left(a[0])
    for order in range(1, 200):
        sequence = waiting("r", order, client=f"client {order}")
        fill(policy, [sequence])
        policy.remove(sequence)
        policy.left(sequence)
    fill(policy, a[1:])
    assert drain(policy, cost=10) == ["b0", "b1", "a1"]


@given(st.lists(st.sampled_from("ab"), min_size=20, max_size=80), st.integers(1, 9))
def test_two_clients_that_wait_are_served_alike(clients, cost):
    sequences = [waiting("r", order, client=client) for order, client in enumerate(clients)]
    policy, served = fill(FairShare(), sequences), {"a": 0, "b": 0}
    while {sequence.client for sequence in policy} == {"a", "b"}:
        sequence = policy.first()
        policy.remove(sequence)
        policy.served(sequence, cost)
        served[sequence.client] += cost
        assert abs(served["a"] - served["b"]) <= cost


@given(
    st.sampled_from(PolicyName),
    st.lists(st.tuples(st.integers(-2, 2), st.floats(0, 50), st.sampled_from("ab")), max_size=30),
    st.data(),
)
def test_a_queue_is_the_sorted_list_of_those_who_wait(name, fields, data):
    policy, left = new_policy(name), []
    for order, (priority, since, client) in enumerate(fields):
        sequence = waiting(order, order, priority=priority, since=since, client=client)
        fill(policy, [sequence])
        left.append(sequence)
        if data.draw(st.booleans()):
            gone = left.pop(data.draw(st.integers(0, len(left) - 1)))
            policy.remove(gone)
    keys = {
        PolicyName.FIRST_COME: lambda s: s.order,
        PolicyName.PRIORITY: lambda s: (s.waiting_since / 10 - s.priority, s.order),
    }
    assert set(policy) == set(left)
    if name in keys:
        assert drain(policy) == [s.request_id for s in sorted(left, key=keys[name])]
    else:
        found = drain(policy)
        for client in "ab":
            mine = sorted((s for s in left if s.client == client), key=keys[PolicyName.PRIORITY])
            ids = {s.request_id for s in mine}
            assert [n for n in found if n in ids] == [s.request_id for s in mine]


@given(st.data())
def test_fair_shares_are_what_they_would_be_if_everybody_was_looked_at(data):
    policy, counters, last, everybody = FairShare(), {}, None, []

    def lines():
        return {
            client: min(mine, key=lambda s: (s.waiting_since / 10 - s.priority, s.order))
            for client in "abc"
            if (mine := [s for s in policy if s.client == client])
        }

    def add(sequence):
        here, client = lines(), sequence.client
        floor = min((counters[c] for c in here), default=counters.get(last, 0))
        if client not in here:
            counters[client] = max(counters.get(client, 0), floor)
        policy.add(sequence)

    def remove(sequence):
        policy.remove(sequence)
        return last if sequence.client in lines() else sequence.client

    for order in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["new", "new", "start", "leave", "serve", "park"]))
        running = [sequence for sequence in everybody if sequence not in policy]
        if what == "new":
            client, priority = data.draw(st.sampled_from("abc")), data.draw(st.integers(0, 1))
            sequence = waiting(order, order, client=client, priority=priority)
            everybody.append(sequence)
            policy.arrived(sequence)
            add(sequence)
        elif what == "start" and len(policy):
            last = remove(policy.first())
        elif what == "leave" and everybody:
            gone = everybody.pop(data.draw(st.integers(0, len(everybody) - 1)))
            last = remove(gone) if gone in policy else last
            policy.left(gone)
        elif what == "serve" and running:
            sequence, tokens = data.draw(st.sampled_from(running)), data.draw(st.integers(0, 9))
            counters[sequence.client] += tokens
            policy.served(sequence, tokens)
        elif what == "park" and running:
            add(data.draw(st.sampled_from(running)))
        heads = lines().values()
        wanted = min(heads, key=lambda s: (counters[s.client], s.order), default=None)
        assert policy.first() is wanted
