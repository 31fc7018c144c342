"""Keys with names: `--api-keys`, their limits and usage, and `launch.py keys`."""

from runtime.extras import Extra

EXTRA = Extra(
    name="keys",
    config="extras.keys.config:KeysConfig",
    frontend="extras.keys.part",
    keys="extras.keys.table:find_table",
    listings={"keys": ("list the keys, their limits and their usage instead", "extras.keys.listing:list_keys")},
    programs={"keys": "extras.keys.command"},
)
