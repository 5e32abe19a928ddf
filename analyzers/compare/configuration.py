"""Find the settings that differ between two runs."""

from collections.abc import Iterable, Mapping

from analyzers.compare.model import Row

_RUN_KEYS = ("world_size", "device_name", "backend", "mesh", "versions")
"""The keys of `run.json`, besides its configuration, that describe how the run was made."""
_IGNORED = {"job.dump_folder"}
"""Settings that always differ between two runs, such as their folders."""


def setting_rows(a: Mapping[str, object], b: Mapping[str, object]) -> list[Row]:
    """Return a table row for each setting that differs between two runs, sorted by name.

    `a` and `b` are the contents of the runs' run.json; a setting that is missing in one of them is shown as empty.
    """
    first, second = dict(settings(a)), dict(settings(b))
    names = sorted({*first, *second} - _IGNORED)
    return [
        Row(name, str(first.get(name, "")), str(second.get(name, "")))
        for name in names
        if first.get(name) != second.get(name)
    ]


def settings(manifest: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    """Yield (name, value) of each setting in a run.json: the keys in `_RUN_KEYS`, then `section.key` of its config."""
    for name in _RUN_KEYS:
        if name in manifest:
            yield name, manifest[name]
    config = manifest.get("config")
    for section, keys in config.items() if isinstance(config, dict) else ():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            yield f"{section}.{key}", value
