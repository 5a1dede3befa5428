import threading

from tokenmill.scheduler.budget import MemoryBudget


def test_accounts_share_one_budget():
    budget = MemoryBudget(100)
    a, b = budget.open("a"), budget.open("b")
    assert a.resize(60)
    assert not b.resize(41)
    assert (a.held, b.held, budget.free) == (60, 0, 40)
    assert b.resize(40)
    assert budget.reserved == 100


def test_a_smaller_size_gives_bytes_back():
    budget = MemoryBudget(100)
    account = budget.open("a")
    account.resize(90)
    assert account.resize(10)
    assert (budget.free, account.available) == (90, 100)


def test_what_others_hold_is_not_available():
    budget = MemoryBudget(100)
    a, b = budget.open("a"), budget.open("b")
    a.resize(30)
    b.resize(20)
    assert (a.available, b.available) == (80, 70)


def test_a_closed_account_holds_nothing_and_closes_twice():
    budget = MemoryBudget(100)
    account = budget.open("a")
    account.resize(90)
    account.close()
    account.close()
    assert (budget.reserved, account.held) == (0, 0)


def test_threads_never_hold_more_than_the_budget_together():
    budget = MemoryBudget(1000)
    most = []

    def work(account):
        most.extend(budget.reserved for size in range(400) if account.resize(size))

    threads = [threading.Thread(target=work, args=(budget.open(str(i)),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 1000
