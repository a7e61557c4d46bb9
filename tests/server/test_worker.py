import threading

import pytest
from wires import eventually

from dspark.errors import EngineStopped, Overloaded, TooManyWaiting, UsageError
from dspark.server.worker import Task, Worker


class Gate:
    """A job that runs until it is let go."""

    def __init__(self, log=None, name=""):
        self.log, self.name = log if log is not None else [], name
        self.begun, self.go, self.error = threading.Event(), threading.Event(), None

    def run(self):
        self.log.append(self.name)
        self.begun.set()
        assert self.go.wait(10)

    def fail(self, error):
        self.error = error

    def cancel(self):
        self.go.set()


class Failing(Gate):
    def __init__(self, error):
        super().__init__()
        self._raise = error

    def run(self):
        raise self._raise


@pytest.fixture
def worker():
    worker = Worker(waiting_limit=4, waiting_limit_of_a_key=2)
    worker.start()
    yield worker
    worker.stop(5)


@pytest.fixture
def busy(worker):
    """The job under way while all others wait."""
    gate = Gate()
    worker.submit(gate)
    assert gate.begun.wait(5)
    yield gate
    gate.go.set()


def test_jobs_run_in_the_order_in_which_they_came(worker, busy):
    log = []
    jobs = [Gate(log, name) for name in "abc"]
    for job in jobs:
        job.go.set()
        worker.submit(job)
    busy.go.set()
    assert eventually(lambda: log == ["a", "b", "c"])


def test_all_jobs_run_on_one_thread(worker):
    seen = []
    for _ in range(3):
        task = Task(lambda: seen.append(threading.current_thread().name))
        worker.submit(task)
        assert task.wait(5)
    assert seen == ["dspark-worker"] * 3


def test_a_full_queue_refuses_and_says_when_to_come_back(worker, busy):
    for _ in range(4):
        worker.submit(Gate())
    with pytest.raises(Overloaded) as refused:
        worker.submit(Gate())
    assert (refused.value.status, refused.value.retry_after_s) == (503, 1)
    worker.submit(Gate(), always=True)


def test_a_key_gets_no_more_than_its_share_of_the_queue(worker, busy):
    for _ in range(2):
        worker.submit(Gate(), "key")
    with pytest.raises(TooManyWaiting) as refused:
        worker.submit(Gate(), "key")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    worker.submit(Gate(), "other")


def test_a_job_that_was_withdrawn_is_never_begun(worker, busy):
    """J3 (a), J6: who left while it waited costs nothing."""
    log = []
    gone, stays = Gate(log, "gone"), Gate(log, "stays")
    stays.go.set()
    worker.submit(gone)
    worker.submit(stays)
    worker.withdraw(gone)
    assert worker.waiting == 1
    busy.go.set()
    assert eventually(lambda: log == ["stays"])


@pytest.mark.parametrize(("error", "told"), [(RuntimeError("secret"), "RuntimeError"), (UsageError("no"), None)])
def test_an_error_ends_its_own_job_only(worker, error, told):
    """J2: the next job runs, and a defect is told by no more than its name."""
    failing, after = Failing(error), Task(lambda: None)
    worker.submit(failing)
    worker.submit(after)
    assert after.wait(5) and failing.error is error
    assert worker.alive and worker.last_error == told


def test_a_death_is_told_and_logged_and_nobody_is_left_waiting(worker, busy, caplog):
    """J2: the thread is gone, and everyone is told."""
    waits = Gate()
    worker.submit(Failing(SystemExit("killed")))
    worker.submit(waits)
    busy.go.set()
    assert eventually(lambda: not worker.alive)
    assert eventually(lambda: isinstance(waits.error, EngineStopped))
    assert "SystemExit: killed" in worker.death
    assert "dspark-worker died" in caplog.text
    with pytest.raises(EngineStopped, match="start the server again"):
        worker.submit(Gate())


def test_a_stop_ends_what_runs_and_fails_what_waits(worker, busy):
    waits = Gate()
    worker.submit(waits)
    assert worker.stop(5)
    assert isinstance(waits.error, EngineStopped) and busy.error is None
    with pytest.raises(EngineStopped):
        worker.submit(Gate())


def test_what_can_wait_is_done_while_nobody_asks_and_once_more_at_the_end(monkeypatch):
    monkeypatch.setattr("dspark.server.worker.IDLE_SECONDS", 0.01)
    log = []
    worker = Worker(idle=lambda: log.append("idle"), leave=lambda: log.append(threading.current_thread().name))
    worker.start()
    assert eventually(lambda: log.count("idle") >= 2)
    assert worker.stop(5, 5) and log[-1] == "dspark-worker"
    assert log.count("dspark-worker") == 1


def test_what_fails_while_nobody_asks_is_not_tried_again_and_harms_nobody(monkeypatch, caplog):
    monkeypatch.setattr("dspark.server.worker.IDLE_SECONDS", 0.01)
    tried = []

    def failing():
        tried.append(1)
        raise ZeroDivisionError

    worker = Worker(idle=failing, leave=failing)
    worker.start()
    assert eventually(lambda: tried)
    after = Task(lambda: None)
    worker.submit(after)
    assert after.wait(5) and worker.alive
    assert worker.stop(5) and len(tried) == 2
    assert "between requests failed" in caplog.text


def test_a_stop_waits_longer_for_what_is_done_at_the_end_than_for_a_job():
    go = threading.Event()
    worker = Worker(leave=lambda: go.wait(5))
    worker.start()
    assert not worker.stop(0.2)
    go.set()
    assert worker.stop(0.2, 5)


def test_a_withdrawal_tells_whether_the_job_was_waiting(worker, busy):
    waits = Gate()
    worker.submit(waits)
    assert worker.withdraw(waits) and not worker.withdraw(waits) and not worker.withdraw(busy)
