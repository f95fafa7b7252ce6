"""Register oracles by the name of their loss."""

ORACLES = {}  # none here


def oracles_by_name():
    """Return a dictionary, and the decorator that adds a function to it."""
    oracles = {}

    def oracle(name):
        def register(function):
            oracles[name] = function
            return function

        return register

    return oracles, oracle
