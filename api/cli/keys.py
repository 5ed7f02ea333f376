"""``capreplay keys``: API keys and tenants, on the database itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from api.cli.options import options
from api.cli.output import json_option, print_json, table
from api.cli.service import data_dir_option, open_services, settings_with

if TYPE_CHECKING:
    from models.tables import ApiKey

_SCOPES = ("traces:write", "jobs:write", "reports:read", "admin")

tenant_option = click.option("--tenant", metavar="ID", help="Tenant (tnt_...); default: the first one.")


@click.group("keys", short_help="Create, list and revoke API keys.")
def command() -> None:
    """Create, list and revoke API keys.

    Works on the database that CAPREPLAY_DATABASE_URL names, without the service.
    """


@command.command("create", short_help="Create a key and print it, once.")
@options(
    click.option("--name", required=True, help="What the key is for."),
    click.option(
        "--scope", "scopes", multiple=True, type=click.Choice(_SCOPES), help="Repeatable; default: all but admin."
    ),
    click.option(
        "--expires-days",
        type=click.FloatRange(min=0, max=36_500, min_open=True),
        help="Days until it ends; default: never.",
    ),
    tenant_option,
    data_dir_option,
    json_option,
)
def create(
    name: str,
    scopes: tuple[str, ...],
    expires_days: float | None,
    tenant: str | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Create a key and print it, once.

    Only a hash is kept: whoever loses the text makes a new key.
    """
    from models.principal import LOCAL_TENANT_ID, local_principal
    from models.use_cases import keys

    chosen = frozenset(scopes or _SCOPES[:-1])
    expires_in = None if expires_days is None else timedelta(days=expires_days)
    with open_services(settings_with(data_dir=data_dir)) as services, services.database.write() as session:
        principal = local_principal(tenant or LOCAL_TENANT_ID)
        issued = keys.create_key(session, principal, services, name=name, scopes=chosen, expires_in=expires_in)
        answer = _facts(issued.key) | {"key": issued.text}
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["key"])
        click.echo(
            f"{answer['id']}: {', '.join(answer['scopes'])}; keep the text above, it is not shown again", err=True
        )


@command.command("list", short_help="List keys, revoked ones too.")
@options(tenant_option, data_dir_option, json_option)
def list_(tenant: str | None, data_dir: Path | None, as_json: bool) -> None:
    """List keys, revoked ones too."""
    from models.paging import PageRequest
    from models.principal import LOCAL_TENANT_ID, local_principal
    from models.use_cases import keys

    found: list[dict[str, Any]] = []
    with open_services(settings_with(data_dir=data_dir)) as services, services.database.read() as session:
        request: PageRequest | None = PageRequest(limit=200)
        while request is not None:
            page = keys.list_keys(session, local_principal(tenant or LOCAL_TENANT_ID), request)
            found += [_facts(key) for key in page.items]
            request = None if page.next is None else PageRequest(limit=200, after=page.next)
    if as_json:
        print_json({"keys": found})
    elif found:
        names = ("id", "name", "state", "last_used_at")
        rows = [(*(str(one[name] or "-") for name in names), " ".join(one["scopes"])) for one in found]
        click.echo(table(("id", "name", "state", "last used", "scopes"), rows, left=(0, 1, 2, 3, 4)))
    else:
        click.echo("no keys yet: make one with capreplay keys create --name NAME")


@command.command("revoke", short_help="End a key at once.")
@options(click.argument("key_id"), tenant_option, data_dir_option, json_option)
def revoke(key_id: str, tenant: str | None, data_dir: Path | None, as_json: bool) -> None:
    """End a key at once. KEY_ID is its id (key_...), not its text."""
    from models.principal import LOCAL_TENANT_ID, local_principal
    from models.use_cases import keys

    with open_services(settings_with(data_dir=data_dir)) as services, services.database.write() as session:
        keys.revoke_key(session, local_principal(tenant or LOCAL_TENANT_ID), services, key_id)
    if as_json:
        print_json({"id": key_id, "state": "revoked"})
    else:
        click.echo(f"{key_id} is revoked")


@command.command("rotate", short_help="Replace a key; the old one ends after a grace time.")
@options(
    click.argument("key_id"),
    click.option(
        "--grace-hours",
        type=click.FloatRange(min=0, max=720),
        default=24.0,
        show_default=True,
        help="Until the old one ends.",
    ),
    tenant_option,
    data_dir_option,
    json_option,
)
def rotate(key_id: str, grace_hours: float, tenant: str | None, data_dir: Path | None, as_json: bool) -> None:
    """Replace a key; the old one ends after a grace time. KEY_ID is its id (key_...), not its text."""
    from models.principal import LOCAL_TENANT_ID, local_principal
    from models.use_cases import keys

    with open_services(settings_with(data_dir=data_dir)) as services, services.database.write() as session:
        principal = local_principal(tenant or LOCAL_TENANT_ID)
        issued = keys.rotate_key(session, principal, services, key_id, grace=timedelta(hours=grace_hours))
        answer = _facts(issued.key) | {"key": issued.text}
    if as_json:
        print_json(answer)
    else:
        click.echo(answer["key"])


@command.command("tenants", short_help="List tenants, or add one.")
@options(click.option("--add", metavar="NAME", help="Add a tenant with this name."), data_dir_option, json_option)
def tenants(add: str | None, data_dir: Path | None, as_json: bool) -> None:
    """List tenants, or add one."""
    from models.use_cases import keys

    with open_services(settings_with(data_dir=data_dir)) as services, services.database.write() as session:
        if add:
            keys.create_tenant(session, services, add)
        found = [{"id": one.id, "name": one.name} for one in keys.list_tenants(session)]
    if as_json:
        print_json({"tenants": found})
    else:
        click.echo(table(("id", "name"), [(one["id"], one["name"]) for one in found], left=(0, 1)))


def _facts(key: ApiKey) -> dict[str, Any]:
    from models.clock import utc_now

    def text(moment: datetime | None) -> str | None:
        return None if moment is None else moment.isoformat(timespec="seconds")

    state = "revoked" if key.revoked_at is not None else "active"
    if state == "active" and key.expires_at is not None and key.expires_at <= utc_now():
        state = "expired"
    return {
        "id": key.id,
        "tenant": key.tenant_id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "state": state,
        "created_at": text(key.created_at),
        "expires_at": text(key.expires_at),
        "last_used_at": text(key.last_used_at),
    }
