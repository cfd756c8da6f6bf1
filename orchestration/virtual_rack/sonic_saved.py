"""What a SONiC switch keeps over a restart: CONFIG_DB on disk, and Redis' data.

`config save` writes the running CONFIG_DB to a file, and a cold boot starts from it: rows that were
not saved are gone. A warm or fast reboot saves all of Redis and starts from that, so that every row
is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from orchestration.agent.sonic.resp import CONFIG_DB, SOCKET, Redis
from orchestration.virtual_rack.sonic_model import Rows

CONFIG_FILE = Path("/etc/sonic/config_db.json")
# Redis starts from the file `dump.rdb` here.
REDIS_FOLDER = Path("/var/lib/redis")


def save_config(rows: Mapping[str, Mapping[str, str]], file: Path = CONFIG_FILE) -> None:
    """Write rows as SONiC does: table, key, field, value."""
    tables: dict[str, dict[str, Mapping[str, str]]] = {}
    for name in sorted(rows):
        table, _, key = name.partition("|")
        tables.setdefault(table, {})[key] = rows[name]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tables, indent=4))


def load_config(file: Path = CONFIG_FILE) -> Rows | None:
    """Return the saved rows by their keys in CONFIG_DB, None if nothing was saved."""
    if not file.exists():
        return None
    tables = json.loads(file.read_text())
    return {f"{table}|{key}": row for table, rows in tables.items() for key, row in rows.items()}


def config_save(socket: str = SOCKET, file: Path = CONFIG_FILE) -> None:
    """Save the running CONFIG_DB, as the command `config save` does."""
    redis = Redis(socket)
    rows = redis.rows(CONFIG_DB, "*|*")
    redis.close()
    save_config(rows, file)


def before_reboot(*, warm: bool, socket: str = SOCKET, folder: Path = REDIS_FOLDER) -> None:
    """Keep Redis' data for a warm or fast reboot, or drop them as a cold one does.

    Call it before Redis is stopped if `warm`, afterwards if not.
    """
    if warm:
        redis = Redis(socket)
        redis.call(CONFIG_DB, "SAVE")
        redis.close()
    else:
        (folder / "dump.rdb").unlink(missing_ok=True)
