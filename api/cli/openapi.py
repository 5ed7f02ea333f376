"""``capreplay openapi``: the API's description."""

from __future__ import annotations

import click


@click.command("openapi", short_help="Print the API's OpenAPI description.")
def command() -> None:
    """Print the API's OpenAPI description.

    The committed docs/openapi.json is this output.
    """
    from api.openapi import openapi_text

    click.echo(openapi_text(), nl=False)
