# One image for every role; the command says which (see docker-compose.yml).
FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_COMPILE_BYTECODE=1
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /tools \
 && /tools/bin/python -m pip install --require-hashes --no-deps -r requirements-build.lock \
 && python -m venv --without-pip /opt/capreplay \
 && /tools/bin/uv pip sync --python /opt/capreplay/bin/python --require-hashes requirements.lock
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY api api
COPY worker worker
COPY replay replay
COPY models models
COPY migrations migrations
RUN /tools/bin/python -m hatchling build --target wheel --directory /dist \
 && /tools/bin/uv pip install --python /opt/capreplay/bin/python --offline --no-deps /dist/capreplay-*.whl

FROM python:3.11-slim-bookworm
# Kernels compiled at build run on any host of this architecture, so no host's own extensions are used.
ENV PATH=/opt/capreplay/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CPU_NAME=generic \
    CAPREPLAY_DATA_DIR=/data
RUN groupadd --system --gid 10001 capreplay \
 && useradd --system --uid 10001 --gid capreplay --home-dir /data --no-create-home capreplay \
 && install --directory --owner capreplay --group capreplay /data
COPY --from=build /opt/capreplay /opt/capreplay
WORKDIR /data
USER 10001:10001
# Fills /data/numba; a new named volume at /data starts as a copy of it. Elsewhere a worker compiles when it starts.
RUN capreplay warmup
VOLUME /data
EXPOSE 8000
CMD ["capreplay", "serve"]
