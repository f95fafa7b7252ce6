"""What every regularizer promises, checked for every regularizer that is found."""

import pytest
from helpers.together import failing

from trainables.regularizers import REGULARIZERS
from trainables.testing import regularizer_checks

KNOBS = {
    "none": [{}],
    "l2": [{}],
    "sec": [{}, {"rho": 0.3}, {"rho": 0}],
    "sec_fixed": [{"mu": 2.5}, {"mu": "first_batch"}],
}
CASES = [(name, knobs) for name in REGULARIZERS for knobs in KNOBS.get(name, [{}])]


@pytest.mark.parametrize(("name", "knobs"), CASES)
def test_a_regularizer_keeps_its_promises(name, knobs):
    assert failing({str(check): check for check in regularizer_checks(REGULARIZERS[name], **knobs)}) == []
