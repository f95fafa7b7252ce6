"""What several unit tests begin with."""

import pytest


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user who has a token, readable to nobody else; the token."""
    token = tmp_path / "home" / ".ray" / "auth_token"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    token.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return token
