import pytest
from helpers.toys import opened, write_sweep
from judging import FAILURES, report_of


@pytest.fixture(scope="session")
def steep(tmp_path_factory):
    """A complete sweep whose curve falls, best at the lowest value; test metrics opened."""
    folder = tmp_path_factory.mktemp("steep")
    return report_of(opened(write_sweep(folder / "sec_rho")), folder)


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    """The same with diverged, failed and missing trials; test metrics sealed."""
    folder = tmp_path_factory.mktemp("broken")
    return report_of(write_sweep(folder / "sec_rho", failures=FAILURES, missing=[("rho=0.1", 2)]), folder)
