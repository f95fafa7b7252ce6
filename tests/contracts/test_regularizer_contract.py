"""What every regularizer promises, checked for every regularizer that is found."""

import pytest

from trainables.regularizers import REGULARIZERS
from trainables.testing import regularizer_checks

KNOBS = {
    "none": [{}],
    "l2": [{}],
    "sec": [{}, {"rho": 0.3}, {"rho": 0}],
    "sec_fixed": [{"mu": 2.5}, {"mu": "first_batch"}],
}
CHECKS = [
    pytest.param(check, id=f"{name} {knobs or ''}: {check}")
    for name, cls in REGULARIZERS.items()
    for knobs in KNOBS.get(name, [{}])
    for check in regularizer_checks(cls, **knobs)
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_regularizer_keeps_its_promises(check):
    check()
