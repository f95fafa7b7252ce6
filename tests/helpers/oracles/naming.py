"""How an oracle gets its loss's name."""

ORACLES = {}  # none here


def oracles_by_name():
    """A dictionary, and the decorator that puts a function into it."""
    oracles = {}

    def oracle(name):
        def register(function):
            oracles[name] = function
            return function

        return register

    return oracles, oracle
