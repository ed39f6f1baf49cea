"""/metrics: counters of the engine and of requests, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from ..service import Service

if TYPE_CHECKING:
    from prometheus_client import Metric


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
        """All families. What ends in `_total` only grows; the rest goes up and down."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        service = self._service
        requests = CounterMetricFamily(
            "kvarn_http_requests", "Requests answered.", labels=["method", "path", "status"]
        )
        for (method, path, status), n in sorted(service.requests.items()):
            requests.add_metric([method, path, str(status)], n)
        yield requests
        seconds = CounterMetricFamily(
            "kvarn_http_seconds", "Seconds that requests took.", labels=["path"]
        )
        for path, total in sorted(service.seconds.items()):
            seconds.add_metric([path], total)
        yield seconds
        gauges = {
            "http_requests_running": service.n_requests,
            "engine_ready": service.engine.state == "ready",
            "engine_restarts_total": service.engine.restarts,
        }
        for name, value in {**gauges, **service.engine.counters}.items():
            words = name.removesuffix("_total").replace("_", " ").capitalize() + "."
            if name.endswith("_total"):
                yield CounterMetricFamily(f"kvarn_{name}", words, value=float(value))
            else:
                yield GaugeMetricFamily(f"kvarn_{name}", words, value=float(value))
