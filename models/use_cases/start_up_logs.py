"""A pasted start-up log, read with the tenant's catalogue. Nothing is stored."""

from __future__ import annotations

from sqlalchemy.orm import Session

from models.principal import Principal
from models.use_cases.catalogue import catalogue_for
from replay.errors import SpecError
from replay.hardware.start_up_log import StartUpLog, read_start_up_log


def read_log(session: Session, principal: Principal, text: str) -> StartUpLog:
    """The settings and KV blocks of a log. Raises SpecError ``start_up_log.*``."""
    log = read_start_up_log(text)
    name = log.value("model")
    if name is None:
        return log
    try:
        model = catalogue_for(session, principal).model(str(name))
    except SpecError:  # a path, or a model that nobody described, is no fault of the log: the answer says what follows
        return log
    return read_start_up_log(text, model)
