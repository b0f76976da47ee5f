# The service in a container, on the CPU:
#   docker build -t clocs .
#   docker run -p 8080:8080 -e CLOCS_TOKEN=… clocs cmsc-chapman
# pip takes torch for GPUs from most indexes; name one with CPU builds in PIP_EXTRA_INDEX_URL to
# have a smaller image.
FROM python:3.11-slim

# The encoders' hot loops are compiled on first use.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

ARG PIP_EXTRA_INDEX_URL=""
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt ".[serve,search]" \
    && rm -rf /source

RUN useradd --create-home --uid 10001 clocs
USER clocs
WORKDIR /home/clocs
ENV PYTHONUNBUFFERED=1

EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health')"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["clocs", "serve", "--host", "0.0.0.0", "--port", "8080"]
CMD ["cmsc-chapman"]
