"""Plans as older versions stored them: read as they would be written today."""

from __future__ import annotations

from typing import Any


def upgraded(body: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a plan; one from before there were arms gets its baseline and its only other arm."""
    if "arms" in body:
        return body
    space, settings, origins = dict(body["space"]), body["base_settings"], body["origins"]
    protocol = next((p for p in space.get("protocols", ()) if p["dataset"] == body["dataset"]), None)
    arms = [{"name": "", "base_settings": settings, "origins": origins, "protocol": protocol}]
    if space.get("baseline"):
        label, own = space["baseline"]["label"], space["baseline"]["settings"]
        space["baseline"] = {"name": label, "settings": own, "knobs": []}
        cell = next((cell for cell in body["cells"] if cell["baseline"]), None)
        if cell is not None:
            arm = {"name": label, "base_settings": cell["settings"], "origins": {}, "protocol": protocol}
            arms.insert(0, {**arm, "baseline": True})
    given = {path: value for path, value in settings.items() if origins.get(path) == "--set"}
    return {**body, "space": space, "arms": arms, "settings": given}
