# A gossip router and a node, each an image of its own:
#
#   docker build --target router -t waystation-router .
#   docker build --target node -t waystation-node .
#
# docs/how-to/run-in-a-container.md says how to run them.

FROM python:3.13.5-slim-bookworm AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /build
COPY pyproject.toml PACKAGE.md LICENSE requirements.lock ./
COPY src src
# The versions of the lock file, without the hashes: those would have to include our own.
RUN sed -e '/^ /d' -e 's/ *\\$//' requirements.lock > constraints.txt \
    && python -m venv /opt/waystation \
    && /opt/waystation/bin/pip install --no-cache-dir --disable-pip-version-check \
       --constraint constraints.txt ".[http,journal,mqtt,ws]"

FROM python:3.13.5-slim-bookworm AS base
RUN groupadd --gid 10001 waystation \
    && useradd --uid 10001 --gid waystation --no-create-home --home-dir /var/lib/waystation \
       --shell /usr/sbin/nologin waystation \
    && install --directory --owner waystation --group waystation \
       /var/lib/waystation /etc/waystation
COPY --from=build /opt/waystation /opt/waystation
ENV PATH=/opt/waystation/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/waystation
VOLUME /var/lib/waystation
USER 10001:10001
# SIGTERM: take nothing new, finish what is there, seal the journal.
STOPSIGNAL SIGTERM
ENTRYPOINT ["waystation"]

FROM base AS router
ENV WAYSTATION_LISTEN=0.0.0.0:12001 \
    WAYSTATION_METRICS=127.0.0.1:9090
EXPOSE 12001
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9090/health', timeout=4)"]
CMD ["router"]

FROM base AS node
ENV WAYSTATION_CONFIG=/etc/waystation/node.toml
EXPOSE 4000
# It asks the node itself, so the file must have `[status] enabled = true` and listen on this port.
HEALTHCHECK --interval=10s --timeout=8s --start-period=10s --retries=3 \
    CMD ["waystation", "top", "tcp://127.0.0.1:4000", "--once", "--json", "--timeout", "5"]
CMD ["node"]
