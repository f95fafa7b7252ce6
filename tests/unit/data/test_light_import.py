"""Planning a sweep must not load torch."""

import subprocess
import sys


def test_importing_and_building_data_sets_loads_no_torch():
    program = (
        "import sys, trainables.data as d; d.build_dataset('glyphs').check(); "
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
