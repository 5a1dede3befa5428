import threading

from tokenmill.scheduler.budget import MemoryBudget


def nothing():
    return 0


def test_accounts_share_one_budget():
    budget = MemoryBudget(100)
    a, b = budget.open(nothing), budget.open(nothing)
    assert a.resize(60)
    assert not b.resize(41)
    assert (a.held, b.held, budget.free) == (60, 0, 40)
    assert b.resize(40)
    assert budget.reserved == 100


def test_a_smaller_size_gives_bytes_back():
    budget = MemoryBudget(100)
    account = budget.open(nothing)
    account.resize(90)
    assert account.resize(10)
    assert (budget.free, account.available) == (90, 100)


def test_what_others_hold_is_not_available():
    budget = MemoryBudget(100)
    a, b = budget.open(nothing), budget.open(nothing)
    a.resize(30)
    b.resize(20)
    assert (a.available, b.available) == (80, 70)
    assert (a.most, b.most) == (100, 100)


def test_a_closed_account_holds_nothing_and_closes_twice():
    budget = MemoryBudget(100)
    account = budget.open(nothing)
    account.resize(90)
    account.close()
    account.close()
    assert (budget.reserved, account.held) == (0, 0)


def test_measured_room_is_added_to_what_is_in_memory_already():
    budget = MemoryBudget(0)
    budget.open(lambda: 30)
    closed = budget.open(lambda: 500)
    budget.open(lambda: 12)
    closed.close()
    budget.measure(100)
    assert budget.total == 142
    budget.measure(-5)
    assert budget.total == 42


def test_a_budget_that_became_smaller_takes_nothing_away_and_gives_nothing_more():
    budget = MemoryBudget(100)
    account = budget.open(nothing)
    account.resize(80)
    budget.measure(50)
    assert (account.held, budget.free) == (80, -30)
    assert not account.resize(81)
    assert account.resize(80)
    assert account.resize(70)
    assert account.held == 70


def test_threads_never_hold_more_than_the_budget_together():
    budget = MemoryBudget(1000)
    most = []

    def work(account):
        most.extend(budget.reserved for size in range(400) if account.resize(size))

    threads = [threading.Thread(target=work, args=(budget.open(nothing),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 399 <= max(most) <= 1000
