"""/metrics: counters of the engine and of requests, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from ..service import Service

if TYPE_CHECKING:
    from prometheus_client import Metric

_GAUGES: Mapping[str, str] = {
    "http_requests_running": "HTTP requests that are being answered.",
    "engine_ready": "Whether the model is loaded and answers: 1, else 0.",
    "active": "Requests that the model is reading or answering.",
    "waiting": "Requests that wait for one of those to end.",
    "library_bytes": "Bytes on disk of the texts that were read before.",
    "library_texts": "Texts on disk that were read before.",
}
_COUNTERS: Mapping[str, str] = {
    "engine_restarts": "Times that the model was loaded again after its process had ended.",
    "requests": "Requests that the model has begun to read.",
    "prompt_tokens": "Tokens of prompts that were read, without those that were read before.",
    "read_seconds": "Seconds spent on reading prompts.",
    "generated_tokens": "Tokens that were generated.",
    "decode_seconds": "Seconds spent on generating tokens.",
    "drafted_tokens": "Tokens that drafts have guessed.",
    "accepted_tokens": "Tokens that drafts have guessed right.",
    "library_written_bytes": "Bytes written to disk to keep the texts that were read.",
}
"""Name → what it says. Counters only grow, until the engine is started again."""


async def metrics(service: Service, body: None, request: Request) -> Response:
    """Counters and gauges."""
    # Loaded by those who ask: it takes a fifth of the time that the server needs to start.
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry()
    registry.register(_Families(service))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})


class _Families:
    """The service's numbers in Prometheus's form."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """All families; names of counters end in `_total`."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        service = self._service
        requests = CounterMetricFamily(
            "kvarn_http_requests",
            "HTTP requests that were answered.",
            labels=["method", "path", "status"],
        )
        for (method, path, status), n in sorted(service.requests.items()):
            requests.add_metric([method, path, str(status)], n)
        yield requests
        seconds = CounterMetricFamily(
            "kvarn_http_seconds", "Seconds spent on answering HTTP requests.", labels=["path"]
        )
        for path, total in sorted(service.seconds.items()):
            seconds.add_metric([path], total)
        yield seconds
        values = {
            "http_requests_running": service.n_requests,
            "engine_ready": service.engine.state == "ready",
            "engine_restarts": service.engine.restarts,
            **service.engine.counters,
        }
        for name, value in values.items():
            if name in _COUNTERS:
                yield CounterMetricFamily(f"kvarn_{name}", _COUNTERS[name], value=float(value))
            else:
                yield GaugeMetricFamily(f"kvarn_{name}", _GAUGES[name], value=float(value))
