"""What the service can do. Functions ``(session, principal, ...)``; none commits."""
