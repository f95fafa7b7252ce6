import pytest
from helpers.cuda import write_pictures


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Twelve classes of twelve pictures."""
    root = tmp_path_factory.mktemp("pictures")
    write_pictures(root)
    return root


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """The folder of their decoded copies."""
    return tmp_path_factory.mktemp("cache")
