"""What a trial says goes out while it trains on: together where it comes fast, in order, whatever becomes of it."""

import threading

import pytest

from tune_dml.record.events import TrialEnd
from tune_dml.running.trials.messages import Messages, _Unsent


def sent(said, stall_limit=None, end=None):
    """(second, message) for each that goes out of what is said: (second, row or note or None for a step)."""
    unsent, out = _Unsent(stall_limit), []

    def send_until(second):
        while (now := max(last, 0.0)) + (left := unsent.seconds_left(now)) <= second:
            out.append((now + left, unsent.take(now + left)))

    last = 0.0
    for second, what in said:
        send_until(second)
        last = second
        if what is not None:
            unsent.say(what)
        elif unsent.is_silent(second):
            unsent.give_a_sign()
        send_until(second)
    return out, unsent.take(last)


def rows_at(*seconds):
    return [(second, {"step": step}) for step, second in enumerate(seconds)]


def steps(message):
    return [row["step"] for row in message.get("rows", ())]


def test_rows_that_come_fast_travel_together_and_all_in_order():
    out, rest = sent(rows_at(0.0, 0.1, 0.9, 1.1, 1.2, 1.3))
    assert [(second, steps(message)) for second, message in out] == [(0.0, [0]), (1.0, [1, 2])]
    assert steps(rest) == [3, 4, 5]


def test_where_a_trial_goes_on_is_said_once_with_its_first_rows():
    sent = []
    with Messages(sent.append, None) as messages:
        messages.resumed(40)
        messages.row({"step": 20})
        messages.row({"step": 40})
        messages.ended(TrialEnd("finished"))
    assert [message["resumed"] for message in sent if "resumed" in message] == [40]
    assert "resumed" in sent[0]
    assert [row["step"] for message in sent for row in message.get("rows", ())] == [20, 40]


def test_rows_that_come_slowly_go_at_once():
    out, rest = sent(rows_at(0.0, 30.0, 60.0))
    assert [(second, steps(message)) for second, message in out] == [(0.0, [0]), (30.0, [1]), (60.0, [2])]
    assert rest == {}


def test_notes_do_not_wait_each_is_said_by_itself_and_takes_along_what_came_before():
    out, rest = sent([*rows_at(0.0, 0.1), (0.2, "storage is away"), (0.3, {"step": 2}), (0.3, "it is back")])
    assert [(steps(message), message.get("note")) for _, message in out] == [
        ([0], None),
        ([1], "storage is away"),
        ([2], "it is back"),
    ]
    assert rest == {}


def test_steps_without_rows_are_heard_of_several_times_within_the_limit():
    """The first at once: from then on it is known to make steps."""
    out, _ = sent([(second, None) for second in (0.0, 10.0, 25.0, 26.0, 60.0)], stall_limit=100.0)
    assert out == [(0.0, {}), (26.0, {}), (60.0, {})]


def test_steps_without_rows_are_nobody_s_business_without_a_limit():
    assert sent([(second, None) for second in (0.0, 100.0, 1000.0)]) == ([], {})


class Driver:
    """Takes a message when it is let."""

    def __init__(self):
        self.taken, self.asked, self.may = [], threading.Event(), threading.Event()

    def send(self, message):
        self.asked.set()
        assert self.may.wait(60)
        self.taken.append(message)


def test_a_trial_trains_on_while_its_driver_does_not_listen():
    driver = Driver()
    with Messages(driver.send, stall_limit=1e-9) as messages:
        messages.row({"step": 0})
        assert driver.asked.wait(60)
        for step in (1, 2):  # and nobody has taken the first yet
            messages.row({"step": step})
            messages.at_work()
        messages.note("storage is away")
        messages.row({"step": 3})
        assert not driver.taken
        driver.may.set()
        messages.ended(TrialEnd("finished"))
    assert [step for message in driver.taken for step in steps(message)] == [0, 1, 2, 3]
    assert [message["note"] for message in driver.taken if "note" in message] == ["storage is away"]
    assert driver.taken[-1]["ended"]["status"] == "finished"
    assert sum("ended" in message for message in driver.taken) == 1


def test_the_closing_report_is_sent_by_the_trial_s_own_thread():
    """Ray ends it there."""
    threads = []
    with Messages(lambda message: threads.append(threading.current_thread()), None) as messages:
        messages.ended(TrialEnd("finished"))
    assert threads == [threading.current_thread()]


def test_an_error_of_sending_ends_the_trial_at_its_next_word_and_nothing_more_is_sent():
    asked = []

    def send(message):
        asked.append(message)
        raise SystemExit(0)

    def trial(last_word):
        with Messages(send, None) as messages:
            messages.row({"step": 0})
            messages._thread.join(60)
            last_word(messages)

    for last_word in (
        lambda messages: messages.row({"step": 1}),
        lambda messages: messages.note("x"),
        lambda messages: messages.at_work(),
        lambda messages: messages.ended(TrialEnd("finished")),
    ):
        asked.clear()
        with pytest.raises(SystemExit):
            trial(last_word)
        assert asked == [{"rows": [{"step": 0}]}]


def test_what_a_trial_said_before_its_error_arrives():
    driver = Driver()
    driver.may.set()

    def trial():
        with Messages(driver.send, None) as messages:
            messages.note("storage is away")
            messages.row({"step": 0})
            raise ConnectionError

    with pytest.raises(ConnectionError):
        trial()
    assert [message.get("note") for message in driver.taken if "note" in message] == ["storage is away"]
    assert [step for message in driver.taken for step in steps(message)] == [0]
