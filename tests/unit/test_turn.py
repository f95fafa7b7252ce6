"""How a sweep's driver hears of the others on its cluster, when it stops listening to them, and what it begins meanwhile."""

import dataclasses

import pytest

from tune_dml.running.board import Board
from tune_dml.running.priorities import Claim, Node
from tune_dml.running.turn import Allowance, Turn

OURS = Claim("ours", 0, 1, {"CPU": 1.0}, "job1")
NO_ROOM = "room: the nodes that are there have none for a trial"
THEIRS = Claim("theirs", 10, 1, {"CPU": 1.0}, "job2", waiting=2)


class Cluster:
    """The store of a cluster, its clock, and the drivers that have ended."""

    def __init__(self, free=0):
        self.lines, self.ended, self.now, self.answers = {}, set(), 0.0, True
        self.free = free

    def put(self, key, line):
        if not self.answers:
            raise ConnectionError
        self.lines[key] = line

    def read(self):
        return dict(self.lines)

    def remove(self, key):
        self.lines.pop(key, None)

    def has_ended(self, job):
        return job in self.ended

    def nodes(self):
        return (Node({"CPU": 4.0}, {"CPU": float(self.free)}),)

    def board(self, claim):
        return Board(claim, self, clock=lambda: self.now)


@pytest.fixture
def cluster():
    return Cluster()


def test_each_sees_the_other_and_not_itself(cluster):
    ours, theirs = cluster.board(OURS), cluster.board(THEIRS)
    for board in (ours, theirs, ours):
        board.exchange()
    assert ours.view.claims == (THEIRS,)
    assert theirs.view.claims == (OURS,)


def test_alone_the_nodes_are_not_asked(cluster):
    board = cluster.board(OURS)
    board.exchange()
    assert not board.view.claims
    assert not board.view.nodes


def test_a_driver_that_was_killed_is_seen_by_the_next_look_but_one(cluster):
    """Ray knows at once; it is asked only where a line was not renewed."""
    ours, theirs = cluster.board(OURS), cluster.board(THEIRS)
    theirs.exchange()
    ours.exchange()
    cluster.ended.add("job2")
    ours.exchange()
    assert not ours.view.claims
    assert list(cluster.lines) == [ours._key]


def test_a_driver_that_stands_still_counts_for_half_a_minute_and_again_when_it_goes_on(cluster):
    ours, theirs = cluster.board(OURS), cluster.board(THEIRS)
    theirs.exchange()
    seen = []
    for cluster.now in (0.0, 10.0, 29.0, 31.0, 32.0):
        theirs.exchange()  # its thread lives, its loop does not
        ours.exchange()
        seen.append(len(ours.view.claims))
    assert ours.view.silent == (THEIRS,)
    theirs.post(THEIRS)
    theirs.exchange()
    ours.exchange()
    assert [*seen, len(ours.view.claims)] == [1, 1, 1, 0, 0, 1]
    assert not ours.view.silent


def test_a_driver_that_stood_still_and_has_ended_keeps_nothing(cluster):
    ours, theirs = cluster.board(OURS), cluster.board(THEIRS)
    theirs.exchange()
    for cluster.now in (0.0, 31.0, 32.0):
        ours.exchange()
    assert ours.view.silent == (THEIRS,)
    cluster.ended.add("job2")
    ours.exchange()
    assert not ours.view.silent


def test_a_head_that_does_not_answer_is_a_board_that_grows_old(cluster):
    ours, theirs = cluster.board(OURS), cluster.board(THEIRS)
    theirs.exchange()
    ours.exchange()
    cluster.answers = False
    with pytest.raises(ConnectionError):
        ours.exchange()
    cluster.now = 29.0
    assert ours.view.claims
    cluster.now = 31.0
    assert not ours.view.claims
    assert not ours.view.nodes


def test_lines_of_another_version_are_not_heeded(cluster):
    cluster.lines = {"a": b"garbage", "b": b"[1]", "c": b'{"renewed": 1, "colour": "red"}', "d": b'{"sweep": "x"}'}
    board = cluster.board(OURS)
    board.exchange()
    assert not board.view.claims


def test_a_board_that_is_left_takes_its_line_with_it_and_lets_no_error_out(cluster):
    with cluster.board(OURS):
        assert cluster.lines
    assert not cluster.lines
    cluster.answers = False
    with cluster.board(OURS) as board:
        assert not board.view.claims


class Driver:
    """Asks for its turn as its loop does."""

    def __init__(self, cluster, *, most=4, places_late=False, finished=False):
        self.said, self.cluster = [], cluster
        self.board = cluster.board(OURS)
        self.turn = Turn(self.board, most, places_late, lambda: finished, self.said.append)

    def ask(self, other=None, *, placed=1, waiting=0, begun=0):
        if other is not None:
            self.cluster.lines = {"theirs": b""}
            board = self.cluster.board(other)
            board._key = "theirs"
            board.exchange()
        self.board.exchange()
        return self.turn.allowed(placed=placed, waiting=waiting, begun=begun)


def test_alone_or_before_others_it_begins_what_there_is(cluster):
    driver = Driver(cluster)
    assert driver.ask() == Allowance(None)
    assert driver.ask(dataclasses.replace(THEIRS, priority=-1)) == Allowance(None)
    assert driver.ask(dataclasses.replace(THEIRS, waiting=0)) == Allowance(None)
    assert not driver.said


def test_behind_another_it_begins_nothing_and_says_so_once(cluster):
    driver = Driver(cluster)
    assert [driver.ask(THEIRS), driver.ask(dataclasses.replace(THEIRS, waiting=1))] == [Allowance(0, held=True)] * 2
    assert driver.ask(dataclasses.replace(THEIRS, waiting=0)) == Allowance(None)
    assert driver.said == ["sweep theirs of priority 10", ""]


def test_a_driver_that_stands_still_is_named_to_a_sweep_that_goes_on_to_wait_for_room(cluster):
    """What Ray gave it before it keeps, and nobody would know why nothing begins."""
    driver = Driver(cluster)
    driver.ask(THEIRS, placed=0, waiting=1)
    for cluster.now, waiting in ((1.0, 1), (29.0, 1), (31.0, 0), (32.0, 1), (40.0, 1)):  # which had stepped back
        assert driver.ask(placed=0, waiting=waiting).held == (cluster.now < 30)
        assert driver.said[-1] == ("sweep theirs of priority 10" if cluster.now < 30 else "")
    for cluster.now in (42.0, 43.0):
        driver.ask(placed=0, waiting=1)
    cluster.ended.add("job2")
    driver.ask(placed=0, waiting=1)
    assert driver.said == [
        "sweep theirs of priority 10",
        "",
        "room, which sweep theirs may keep: its driver stands still (`tune-dml cancel` ends it)",
        "",
    ]


def test_a_sweep_none_of_whose_trials_finds_room_says_so_in_time(cluster):
    """Its node has gone, say, and nobody else is on the cluster."""
    driver = Driver(cluster)
    for cluster.now, placed in ((0.0, 1), (1.0, 0), (29.0, 0), (30.0, 1), (31.0, 0), (60.9, 0)):
        driver.ask(placed=placed, waiting=1)
    assert not driver.said
    for cluster.now, placed in ((61.1, 0), (80.0, 0), (81.0, 1), (150.0, 1)):
        driver.ask(placed=placed, waiting=1)
    assert driver.said == [NO_ROOM, ""]
    other = Cluster()
    late = Driver(other, places_late=True)  # its workers take their time, and are counted when they have begun
    for other.now in (1.0, 60.0):
        late.ask(placed=0, waiting=1, begun=1)
    assert not late.said


def test_a_trial_that_takes_over_a_process_at_once_holds_nobody_up(cluster):
    driver, posted = Driver(cluster), []
    for cluster.now, waiting in ((1.0, 0), (1.2, 1), (1.4, 0), (1.6, 1), (2.0, 1)):
        driver.ask(waiting=waiting)
        posted.append(driver.board.claim.waiting)
    assert posted == [0, 0, 0, 0, 1]


def test_a_sweep_that_has_nothing_to_begin_waits_for_nobody(cluster):
    driver = Driver(cluster, most=4)
    assert driver.ask(THEIRS, placed=4).held
    assert not driver.said
    driver.ask(placed=3)
    assert driver.said == ["sweep theirs of priority 10"]


def test_what_the_other_cannot_use_it_takes_once(cluster):
    cluster.free = 4
    driver = Driver(cluster)
    assert driver.ask(THEIRS, placed=1) == Allowance(2, held=True)
    # Two more were placed, and one has ended: until the nodes are looked at again none may begin.
    assert driver.turn.allowed(placed=3, waiting=0, begun=0) == Allowance(0, held=True)
    assert driver.turn.allowed(placed=2, waiting=0, begun=0) == Allowance(0, held=True)
    cluster.free = 3
    assert driver.ask(placed=2) == Allowance(1, held=True)


@pytest.mark.parametrize(("finished", "wants"), [(False, 3), (True, 1)])
def test_while_it_waits_it_claims_what_it_would_run_if_it_might(cluster, finished, wants):
    """Else a third sweep, lower still, would go before it."""
    driver = Driver(cluster, finished=finished)
    driver.ask(THEIRS, placed=1, waiting=1)
    assert driver.board.claim.waiting == wants
    driver.ask(dataclasses.replace(THEIRS, waiting=0), placed=1, waiting=1)
    assert driver.board.claim.waiting == 1


def test_where_workers_are_placed_late_no_more_trials_begin_beside_others_than_have_room_and_one(cluster):
    """A trial that has begun cannot step back, so few may be in that state when a higher sweep comes."""
    cluster.free = 2
    equal = dataclasses.replace(THEIRS, priority=0, waiting=0)
    driver = Driver(cluster, places_late=True)
    assert driver.ask() == Allowance(None)
    assert driver.ask(equal, placed=1) == Allowance(3)
    cluster.now = 1.0
    assert driver.ask(equal, placed=1, waiting=3, begun=3) == Allowance(0)
    assert driver.board.claim.waiting == 3
    assert driver.ask(THEIRS, placed=1, waiting=3, begun=3) == Allowance(0, held=True)
