import pytest
from helpers.toys import opened, write_sweep
from written import FAILURES, ReportedSweep

from tune_dml.report import write_report


@pytest.fixture(scope="session")
def steep(tmp_path_factory):
    """A complete sweep whose curve falls, best at the lowest value; test metrics opened."""
    folder = tmp_path_factory.mktemp("steep")
    results = opened(write_sweep(folder / "sec_rho"))
    return ReportedSweep(results, write_report(results, folder / "report"))


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    """The same with diverged, failed and missing trials; test metrics sealed."""
    folder = tmp_path_factory.mktemp("broken")
    results = write_sweep(folder / "sec_rho", failures=FAILURES, missing=[("rho=0.1", 2)])
    return ReportedSweep(results, write_report(results, folder / "report"))
