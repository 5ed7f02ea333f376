"""The Celery client configuration, one for the API's doorbell and the workers. Reasons: docs/adr/0003 to 0005."""

from __future__ import annotations

from typing import Any

import celery

from models.folder_transport import install
from models.settings import Settings

RUN_TASK = "replay.run"
TICK_TASK = "schedule.tick"
DISPATCH_TASK = "jobs.dispatch"
REAP_TASK = "jobs.reap"
SWEEP_TASK = "storage.sweep"
REPLAY_QUEUE = "replay"
CONTROL_QUEUE = "control"


def celery_settings(settings: Settings) -> dict[str, Any]:
    """Everything that Celery is told."""
    return {
        "broker_url": settings.resolved_broker_url,
        "broker_transport_options": _transport_options(settings),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "worker_pool": "prefork",
        "worker_pool_start_method": "spawn",
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": not settings.embedded,
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "task_time_limit": settings.job_time_limit_s,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "worker_soft_shutdown_timeout": settings.worker_soft_shutdown_s,
        "worker_max_tasks_per_child": 100,
        "worker_max_memory_per_child": _memory_per_process_kib(settings),
        "worker_proc_alive_timeout": 120.0,
        "worker_hijack_root_logger": False,
        "worker_send_task_events": False,
        "enable_utc": True,
        "timezone": "UTC",
        "task_create_missing_queues": False,
        "task_default_queue": REPLAY_QUEUE,
        "task_queues": {name: {"exchange": name, "routing_key": name} for name in (REPLAY_QUEUE, CONTROL_QUEUE)},
        "redbeat_redis_url": settings.resolved_broker_url,
        "redbeat_redis_options": {"socket_timeout": 20, "socket_connect_timeout": 3, "health_check_interval": 10},
        "redbeat_key_prefix": f"{settings.broker_key_prefix}redbeat:",
        "redbeat_lock_key": beat_lock_key(settings),
        "redbeat_lock_timeout": 15,
        "beat_max_loop_interval": 3,
    }


def _memory_per_process_kib(settings: Settings) -> int | None:
    limit = settings.worker_memory_limit_mib
    return None if limit is None else limit * 1024 // settings.job_processes


def beat_lock_key(settings: Settings) -> str:
    """The Redis key that the beat which sends holds, and renews."""
    return f"{settings.broker_key_prefix}redbeat:lock"


def _transport_options(settings: Settings) -> dict[str, Any]:
    if settings.embedded:
        queue = settings.data_dir.absolute() / "queue"
        control = settings.data_dir.absolute() / "control"
        for folder in (queue, control):
            folder.mkdir(parents=True, exist_ok=True)
        return {
            "data_folder_in": str(queue),
            "data_folder_out": str(queue),
            "control_folder": str(control),
            "polling_interval": 0.1,
        }
    return {
        "visibility_timeout": max(3600, settings.job_time_limit_s),
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "socket_timeout": 20,
        "socket_connect_timeout": 3,
        "health_check_interval": 10,
        "global_keyprefix": settings.broker_key_prefix,
    }


def make_celery(settings: Settings) -> celery.Celery:
    """A Celery application with these settings and no tasks; it connects to nothing yet."""
    install()
    app = celery.Celery("capreplay", set_as_current=False)
    app.conf.update(celery_settings(settings))
    return app


def send_run(app: celery.Celery, job_id: str, queue: str) -> None:
    """Sends the message of one job: its id alone. Name and task id are fixed, so that repeats are harmless."""
    app.send_task(RUN_TASK, args=[job_id], task_id=job_id, queue=queue, retry=False, ignore_result=True)


def count_messages(app: celery.Celery, queue: str) -> int:
    """Messages that wait at the broker; 0 where it does not answer."""
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=1.0, interval_start=0.0)
            # Not passive: for that kombu 5.7 asks Redis for the key without its prefix, and finds no queue.
            return int(connection.channel().queue_declare(queue=queue, durable=True).message_count)
    except Exception:  # noqa: BLE001 - kombu raises its transports' own errors; who sends next meets and counts them
        return 0


def ping(settings: Settings, timeout_s: float = 1.0) -> None:
    """Raises where the broker does not answer in time."""
    if settings.embedded:
        _transport_options(settings)
        return
    app = make_celery(settings)
    try:
        with app.connection_for_write(connect_timeout=timeout_s) as connection:
            connection.transport_options = {
                **connection.transport_options,
                "socket_timeout": timeout_s,
                "socket_connect_timeout": timeout_s,
            }
            connection.ensure_connection(max_retries=1, timeout=timeout_s, interval_start=0.0)
            connection.default_channel.client.ping()
    finally:
        app.close()
