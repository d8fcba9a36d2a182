"""HTTP, for networks and clients that have nothing else."""

from waystation.transports.http.transport import Http, HttpCounts, HttpLimits

__all__ = ["Http", "HttpCounts", "HttpLimits"]
