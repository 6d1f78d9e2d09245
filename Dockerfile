# One image for every role: `manage.py up` by default, or one of the commands of docs/running.md.
# A package index of one's own: `docker build --secret id=pip,src=pip.conf .`; nothing of it stays in the image.
FROM python:3.11-slim-bookworm AS build
WORKDIR /opt/docora
COPY requirements.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir --no-compile --require-hashes -r requirements.txt \
    && .venv/bin/python -m pip uninstall --yes --quiet pip setuptools
COPY docora docora
COPY repositories repositories
COPY snapshots snapshots
COPY manage.py LICENSE ./
# Compiled here, because the file system may be read-only later.
RUN .venv/bin/python -m compileall -q -j 0 .venv/lib docora repositories snapshots

FROM python:3.11-slim-bookworm
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Docora" \
      org.opencontainers.image.description="Watches git repositories and pushes every changed file, signed, to apps." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="MIT"
# git fetches; tini reaps; pg_dump makes the backups of a PostgreSQL of version 15 or older.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates git postgresql-client tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin docora \
    && install --directory --owner docora --group docora --mode 0700 /data
COPY --from=build /opt/docora /opt/docora
ENV PATH=/opt/docora/.venv/bin:/opt/docora:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    DOCORA_DATA_DIR=/data DOCORA_BIND=0.0.0.0
WORKDIR /opt/docora
USER docora
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-m", "docora.health_probe"]
ENTRYPOINT ["tini", "--"]
CMD ["manage.py", "up"]
