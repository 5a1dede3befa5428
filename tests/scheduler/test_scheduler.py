import pytest

from tokenmill.scheduler.actions import Drop, Grow, Park, Refuse, Start
from tokenmill.scheduler.admission import Capacity, Demand
from tokenmill.scheduler.budget import MemoryBudget
from tokenmill.scheduler.costs import StepCosts
from tokenmill.scheduler.planner import PlannedRow
from tokenmill.scheduler.policy import ByPriority, FairShare, FirstCome
from tokenmill.scheduler.prefill_costs import Chunk
from tokenmill.scheduler.scheduler import Preemption, Scheduler
from tokenmill.scheduler.sequence import Sequence


class Bench:
    """A scheduler, and an engine that does nothing but count."""

    def __init__(
        self, total=100, *, policy=None, rows=4, growth=10, bytes_of=sum, budget=None,
        preemption=Preemption.AUTO, costs=None, **fields,
    ):  # fmt: skip
        self.kept = {}
        self.capacity = Capacity(bytes_of, total, rows, growth)
        self.budget = budget or MemoryBudget(total)
        self.scheduler = Scheduler(
            self.capacity, self.budget, FirstCome() if policy is None else policy,
            costs or StepCosts(), preemption=preemption, **fields,
        )  # fmt: skip

    def add(self, name, prompt, reply, *, is_open=False, now=0.0, **fields):
        demand = Demand(prompt, reply, is_open)
        sequence = Sequence(name, [1] * prompt, demand, **fields)
        self.scheduler.add(sequence, now)
        return sequence

    def decide(self, now=0.0):
        """Decides, and carries out what concerns the state."""
        actions = self.scheduler.decide(now)
        for action in actions:
            sequence = action.sequence
            match action:
                case Start() if sequence.num_computed_tokens == 0:
                    sequence.num_computed_tokens = self.kept.pop(sequence, 0)
                case Park(keeps=keeps):
                    if keeps:
                        self.kept[sequence] = sequence.num_computed_tokens
                    sequence.num_computed_tokens = 0
                case Drop():
                    del self.kept[sequence]
        self.scheduler.check_integrity()
        return actions

    def generate(self, tokens, *sequences):
        """Has sequences say so many tokens more, for which they have room."""
        for sequence in sequences:
            sequence.num_computed_tokens = len(sequence.tokens) + tokens - 1
            sequence.tokens += [2] * tokens


def test_requests_start_in_order_while_there_are_rows_and_memory():
    bench = Bench(total=100, rows=3)
    one, two, three = bench.add("1", 10, 40), bench.add("2", 10, 40), bench.add("3", 1, 1)
    assert bench.decide() == [Start(one, 50), Start(two, 50)]
    assert (bench.budget.reserved, bench.scheduler.num_waiting) == (100, 1)
    assert bench.scheduler.waiting_for == "memory"
    bench.scheduler.remove(one)
    assert bench.decide() == [Start(three, 2)]
    assert (bench.budget.reserved, bench.scheduler.waiting_for) == (52, "")


def test_a_small_request_does_not_overtake_a_large_one():
    bench = Bench(total=100)
    one, large, small = bench.add("1", 10, 50), bench.add("2", 10, 50), bench.add("3", 1, 1)
    assert bench.decide() == [Start(one, 60)]
    assert bench.decide() == []
    bench.scheduler.remove(one)
    assert bench.decide() == [Start(large, 60), Start(small, 2)]


def test_all_rows_taken_is_waiting_for_rows():
    bench = Bench(rows=1)
    one = bench.add("1", 1, 1)
    bench.add("2", 1, 1)
    assert bench.decide() == [Start(one, 2)]
    assert bench.scheduler.waiting_for == "rows"


def test_who_leaves_gives_everything_back_waiting_or_running():
    bench = Bench(total=100)
    runs, waits = bench.add("1", 10, 60), bench.add("2", 10, 60)
    bench.decide()
    bench.scheduler.remove(waits)
    assert (bench.budget.reserved, bench.scheduler.num_waiting) == (70, 0)
    bench.scheduler.remove(runs)
    assert (bench.budget.reserved, list(bench.scheduler.running)) == (0, [])
    bench.scheduler.check_integrity()


def test_an_open_request_grows_in_steps_up_to_what_it_can_use():
    bench = Bench(total=100, growth=10)
    one = bench.add("1", 10, 25, is_open=True)
    assert bench.decide() == [Start(one, 20)]
    bench.generate(10, one)
    assert bench.decide() == []
    bench.generate(1, one)
    assert bench.decide() == [Grow(one, 31)]
    bench.generate(11, one)
    assert bench.decide() == [Grow(one, 35)]
    assert bench.budget.reserved == 35


def three_open(preemption=Preemption.REPLAY, *, policy=None, priorities=(0, 0, 0), growth=10):
    """Three that hold 30 of 90 bytes each, and know 30 tokens each."""
    bench = Bench(total=90, growth=growth, preemption=preemption, policy=policy)
    sequences = [
        bench.add(str(n), 20, 70, is_open=True, priority=priority)
        for n, priority in enumerate(priorities)
    ]
    bench.decide()
    bench.generate(10, *sequences)
    assert bench.decide() == []
    return bench, sequences


def test_where_growth_fails_the_latest_is_parked():
    bench, (one, two, three) = three_open()
    bench.generate(1, one)
    assert bench.decide() == [Park(three, False), Grow(one, 41)]
    assert (bench.budget.reserved, bench.scheduler.num_waiting) == (71, 1)
    assert list(bench.scheduler.running) == [one, two]


def test_where_growth_fails_the_lowest_priority_is_parked_before_the_latest():
    bench, (one, two, three) = three_open(policy=ByPriority(), priorities=(1, 0, 1))
    first, second, third = bench.scheduler.running
    assert (first, second, third) == (one, three, two)
    bench.generate(1, one)
    assert bench.decide() == [Park(two, False), Grow(one, 41)]


def test_where_the_latest_itself_has_to_grow_it_is_parked():
    bench, (_one, _two, three) = three_open()
    bench.generate(1, three)
    assert bench.decide() == [Park(three, False)]


def test_the_oldest_is_never_parked_however_low_its_priority():
    bench, (low, high, higher) = three_open(policy=ByPriority(), priorities=(0, 1, 2))
    bench.generate(1, high, higher)
    assert bench.decide() == [Park(high, False), Grow(higher, 41)]
    bench.generate(10, higher)  # 41 tokens, and room for them
    bench.generate(21, low)
    assert bench.decide() == [Park(higher, False), Grow(low, 61)]
    assert list(bench.scheduler.running) == [low]


def test_several_are_parked_where_one_is_not_enough():
    bench = Bench(total=90, growth=30, preemption=Preemption.REPLAY)
    one = bench.add("1", 10, 80, is_open=True)
    two, three = bench.add("2", 10, 15), bench.add("3", 10, 15)
    assert bench.decide() == [Start(one, 40), Start(two, 25), Start(three, 25)]
    bench.generate(31, one)
    assert bench.decide() == [Park(three, False), Park(two, False), Grow(one, 71)]


def test_the_older_grow_first():
    bench, (one, two, three) = three_open()
    bench.generate(1, one, two, three)
    assert bench.decide() == [Park(three, False), Grow(one, 41), Grow(two, 41)]


def test_who_was_parked_comes_back_once_it_can_become_twice_as_long():
    bench, (one, two, three) = three_open()
    bench.generate(1, one)
    bench.decide()
    bench.scheduler.remove(two)
    # 41 are held. It knows 30 tokens: 60 for it, and 30 more for the older one, are not there.
    assert bench.decide() == []
    bench.scheduler.remove(one)
    assert bench.decide() == [Start(three, 40)]


def test_who_was_parked_does_not_wait_for_room_that_it_and_older_ones_can_never_use():
    bench = Bench(total=90, growth=10, preemption=Preemption.REPLAY)
    one = bench.add("1", 20, 20)
    two = bench.add("2", 20, 30, is_open=True)
    three = bench.add("3", 10, 10)
    assert bench.decide() == [Start(one, 40), Start(two, 30), Start(three, 20)]
    bench.generate(11, two)
    assert bench.decide() == [Park(three, False), Grow(two, 41)]
    bench.generate(10, two)
    assert bench.decide() == []
    # two may use 50 of which it has 41; with one's 40 that is all there is.
    bench.scheduler.remove(one)
    assert bench.decide() == [Start(three, 20)]


def test_younger_ones_do_not_keep_an_older_one_from_coming_back():
    bench = Bench(total=95, growth=10, preemption=Preemption.REPLAY, policy=ByPriority(), rows=2)
    zero = bench.add("0", 10, 10)
    one = bench.add("1", 20, 80, is_open=True)
    bench.decide()
    young = bench.add("2", 30, 30, priority=1)
    assert bench.decide() == [Park(one, False), Start(young, 60)]
    bench.scheduler.remove(zero)
    # 35 bytes are free: enough to start, and what the younger one holds can be had later.
    assert bench.decide() == [Start(one, 30)]


def test_who_cannot_grow_leaves_a_copy_where_its_room_was():
    bench = Bench(total=60, preemption=Preemption.SWAP)
    one = bench.add("1", 10, 20)
    two = bench.add("2", 10, 50, is_open=True)
    assert bench.decide() == [Start(one, 30), Start(two, 20)]
    bench.generate(11, two)
    assert bench.decide() == [Park(two, True)]
    assert (bench.budget.reserved, two.num_kept_tokens) == (50, 20)


def swapping(preemption=Preemption.SWAP, total=100, costs=None, rows=2, **fields):
    """Two low ones run, and the later one has computed 14 tokens, when a high one comes."""
    bench = Bench(
        total, rows=rows, policy=ByPriority(), preemption=preemption, costs=costs, **fields
    )
    one, two = bench.add("1", 10, 20), bench.add("2", 10, 20)
    bench.decide()
    bench.generate(5, one, two)
    high = bench.add("3", 10, 10, priority=1)
    return bench, one, two, high


def test_a_higher_priority_takes_the_row_of_the_latest_and_its_state_is_kept():
    bench, _one, two, high = swapping()
    assert bench.decide() == [Park(two, True), Start(high, 20)]
    assert bench.budget.reserved == 30 + 20 + 14
    assert (two.num_kept_tokens, bench.scheduler.num_copies) == (14, 1)
    bench.scheduler.remove(high)
    assert bench.decide() == [Start(two, 30)]
    assert (bench.budget.reserved, bench.scheduler.num_copies, two.num_kept_tokens) == (60, 0, 0)


def test_no_copy_is_kept_where_it_has_no_room_beside_the_newcomer():
    bench, _one, two, high = swapping(total=63)
    assert bench.decide() == [Park(two, False), Start(high, 20)]
    bench, _one, two, high = swapping(total=64)
    assert bench.decide() == [Park(two, True), Start(high, 20)]


def test_no_copy_is_kept_of_what_was_not_computed_yet():
    bench, _one, two, high = swapping()
    two.num_computed_tokens = 0
    assert bench.decide() == [Park(two, False), Start(high, 20)]


def test_no_copy_is_kept_where_that_is_not_wanted():
    bench, _one, two, high = swapping(Preemption.REPLAY)
    assert bench.decide() == [Park(two, False), Start(high, 20)]


def known_costs(copy_seconds):
    """A row takes 1 ms, a token of a prompt 0.1 ms; a byte is copied in the given time."""
    costs = StepCosts()
    for rows in (1, 2):
        costs.observe(rows, [], 0.001 * rows)
    for tokens in (10, 20):
        costs.observe(0, [Chunk(tokens, 0)], 0.0001 * tokens)
    costs.observe_copy(1, copy_seconds)
    return costs


def test_the_faster_of_copying_and_computing_again_is_chosen():
    # 10 tokens of the prompt and 4 of the reply take 1 + 4 ms again; a copy 28 times its second.
    bench, _one, two, high = swapping(Preemption.AUTO, costs=known_costs(0.004 / 28))
    assert bench.decide() == [Park(two, True), Start(high, 20)]
    bench, _one, two, high = swapping(Preemption.AUTO, costs=known_costs(0.006 / 28))
    assert bench.decide() == [Park(two, False), Start(high, 20)]
    # 14 in chunks take 1.4 ms.
    chunks = {"replays_in_chunks": True, "costs": known_costs(0.004 / 28)}
    bench, _one, two, high = swapping(Preemption.AUTO, **chunks)
    assert bench.decide() == [Park(two, False), Start(high, 20)]


def test_a_copy_is_dropped_where_a_running_one_has_to_grow():
    bench = Bench(total=70, rows=2, growth=10, policy=ByPriority(), preemption=Preemption.SWAP)
    one = bench.add("1", 10, 60, is_open=True)
    two = bench.add("2", 10, 20)
    assert bench.decide() == [Start(one, 20), Start(two, 30)]
    bench.generate(5, one, two)
    high = bench.add("3", 10, 20, priority=1)
    assert bench.decide() == [Park(two, True), Start(high, 30)]
    assert bench.budget.reserved == 64
    bench.generate(6, one)
    assert bench.decide() == [Drop(two), Grow(one, 31)]
    assert (bench.budget.reserved, bench.scheduler.num_copies, two.num_kept_tokens) == (61, 0, 0)


def test_copies_of_the_latest_are_dropped_for_who_starts_and_its_own_is_not():
    bench = Bench(total=100, rows=3, policy=ByPriority(), preemption=Preemption.SWAP)
    zero = bench.add("0", 5, 5)
    one, two = bench.add("1", 10, 20), bench.add("2", 10, 20)
    bench.decide()
    bench.generate(5, one, two)
    high = [bench.add("3", 10, 10, priority=1), bench.add("4", 10, 10, priority=1)]
    assert bench.decide() == [
        Park(two, True), Start(high[0], 20), Park(one, True), Start(high[1], 20),
    ]  # fmt: skip
    assert bench.budget.reserved == 10 + 20 + 20 + 14 + 14
    bench.scheduler.remove(high[0])
    bench.scheduler.remove(high[1])
    higher = bench.add("5", 10, 60, priority=2)
    assert bench.decide() == [Drop(two), Start(higher, 70)]
    bench.scheduler.remove(zero)
    bench.scheduler.remove(higher)
    assert bench.decide() == [Start(one, 30), Start(two, 30)]
    assert bench.budget.reserved == 60


def test_a_parked_request_that_leaves_takes_its_copy_along():
    bench, _one, two, _high = swapping()
    bench.decide()
    bench.scheduler.remove(two)
    assert (bench.budget.reserved, bench.scheduler.num_copies) == (50, 0)
    bench.scheduler.check_integrity()


def test_nobody_is_parked_for_a_higher_one_that_would_not_fit_all_the_same():
    bench, _one, _two, high = swapping(total=60)
    bench.scheduler.remove(high)
    bench.add("4", 10, 30, priority=1)  # 40, and the oldest holds 30 of 60
    assert bench.decide() == []


def test_as_many_are_parked_for_a_higher_one_as_it_needs():
    bench = Bench(total=90, policy=ByPriority(), preemption=Preemption.REPLAY)
    one, two, three = (bench.add(str(n), 10, 20) for n in range(3))
    bench.decide()
    high = bench.add("high", 10, 50, priority=1)
    assert bench.decide() == [Park(three, False), Park(two, False), Start(high, 60)]
    assert list(bench.scheduler.running) == [one, high]


def test_who_has_waited_long_enough_is_not_parked_for_a_higher_one():
    bench = Bench(rows=2, policy=ByPriority(ageing=10), preemption=Preemption.REPLAY)
    one = bench.add("1", 10, 10)
    other = bench.add("2", 10, 10)
    low = bench.add("3", 10, 10)
    bench.decide(0.0)
    bench.scheduler.remove(other)
    assert bench.decide(10.0) == [Start(low, 20)]
    high = bench.add("4", 10, 10, priority=1, now=10.0)
    assert bench.decide(11.0) == []
    higher = bench.add("5", 10, 10, priority=2, now=11.0)
    assert bench.decide(11.0) == [Park(low, False), Start(higher, 20)]
    assert (low.waited, low.waiting_since) == (10.0, 11.0)
    bench.scheduler.remove(one)
    assert bench.decide(12.0) == [Start(high, 20)]  # came before, if for its priority


def test_only_priority_takes_rows_away():
    for policy in (FirstCome(), FairShare()):
        bench = Bench(rows=2, policy=policy)
        for number in range(2):
            bench.add(str(number), 10, 10)
        bench.decide()
        bench.add("high", 10, 10, priority=9)
        assert bench.decide() == []


def two_models(total=100, growth=30):
    budget = MemoryBudget(total)
    return [
        Bench(total, budget=budget, growth=growth, preemption=Preemption.SWAP) for _ in range(2)
    ]


def test_who_is_alone_and_cannot_grow_gives_its_memory_to_other_models():
    a, b = two_models()
    one = a.add("1", 20, 70, is_open=True)
    other = b.add("2", 10, 40)
    assert (a.decide(), b.decide()) == ([Start(one, 50)], [Start(other, 50)])
    a.generate(31, one)
    assert a.decide() == [Park(one, False)]
    assert a.scheduler.account.held == 0
    b.scheduler.remove(other)
    assert a.decide() == [Start(one, 81)]


def test_two_models_do_not_wait_for_the_memory_of_each_others_copies():
    a, b = two_models()
    first, second = a.add("a0", 5, 5), b.add("b0", 5, 5)
    one, other = a.add("a1", 11, 80, is_open=True), b.add("b1", 9, 80, is_open=True)
    assert a.decide() == [Start(first, 10), Start(one, 41)]
    assert b.decide() == [Start(second, 10), Start(other, 39)]
    a.generate(31, one)
    b.generate(31, other)
    assert a.decide() == [Park(one, True)]
    assert b.decide() == [Park(other, True)]
    a.scheduler.remove(first)
    b.scheduler.remove(second)
    assert (a.scheduler.account.held, b.scheduler.account.held) == (41, 39)
    # Nobody runs, and neither has room beside the other's copy.
    assert a.decide() == [Drop(one)]
    assert b.decide() == [Start(other, 70)]
    b.scheduler.remove(other)
    assert a.decide() == [Start(one, 72)]


def test_who_does_not_fit_any_more_is_refused():
    bench = Bench(total=100)
    one, two = bench.add("1", 10, 80), bench.add("2", 10, 80)
    bench.decide()
    bench.budget.measure(50)
    assert bench.decide() == []  # who runs goes on
    bench.scheduler.remove(one)
    assert bench.decide() == [Refuse(two)]
    bench.scheduler.remove(two)
    assert bench.decide() == []


def test_the_ledger_is_right_for_layouts_that_pay_for_the_longest_row():
    def padded(lengths):
        return 2 * len(lengths) * max(lengths, default=0)

    bench = Bench(total=240, bytes_of=padded)
    one, two, three = bench.add("1", 10, 10), bench.add("2", 20, 20), bench.add("3", 5, 5)
    assert bench.decide() == [Start(one, 20), Start(two, 40), Start(three, 10)]
    assert bench.budget.reserved == 240
    bench.scheduler.remove(two)
    assert bench.budget.reserved == 2 * 2 * 20
    bench.scheduler.remove(one)
    assert bench.budget.reserved == 2 * 1 * 10


def test_what_is_in_memory_counts_computed_tokens_and_copies():
    bench, one, two, _high = swapping()
    assert bench.scheduler.committed_bytes() == 14 + 14
    bench.decide()
    assert bench.scheduler.committed_bytes() == 14 + 14  # one's row, and two's copy
    one.num_computed_tokens = 20
    assert bench.scheduler.committed_bytes() == 20 + 14
    assert two.num_computed_tokens == 0


def test_a_closed_scheduler_holds_nothing():
    bench, *_ = swapping()
    bench.decide()
    bench.scheduler.close()
    assert bench.budget.reserved == 0


def test_accounts_that_differ_are_noticed():
    bench = Bench()
    one = bench.add("1", 10, 10)
    bench.decide()
    one.reserved += 1
    with pytest.raises(AssertionError, match="20 bytes are held, and 21 are needed"):
        bench.scheduler.check_integrity()


def test_a_reply_that_is_computed_again_in_chunks_is_bounded_like_a_prompt():
    costs = StepCosts()
    for _ in range(2):
        costs.observe(1, [], 0.010)
    for tokens in (16, 64):
        costs.observe(0, [Chunk(tokens, 0)], 0.001 * tokens)
    bench = Bench(
        1000, costs=costs, growth=400, max_stretch=3, replays_in_chunks=True,
    )  # fmt: skip
    decodes, replays = bench.add("1", 4, 10), bench.add("2", 4, 400, is_open=True)
    bench.decide()
    bench.generate(1, decodes)
    bench.generate(300, replays)
    replays.num_computed_tokens = 4
    assert bench.scheduler.plan() == [
        PlannedRow(decodes, 1, samples=True, is_prefill=False),
        PlannedRow(replays, 20, samples=False, is_prefill=True),
    ]
