# The explorer in a container:
#   docker build -t whymatch . && docker run --rm -p 127.0.0.1:8000:8000 whymatch
# pip may take a build of torch for GPUs, gigabytes of it; --build-arg PIP_EXTRA_INDEX_URL=… names an index of CPU builds.
FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL
RUN useradd --create-home reader
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt '.[model,web]' && rm -rf /src
WORKDIR /home/reader
USER reader
ENV HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz')"
# Inside of a container every address is its own; what reaches it is decided by what is published to whom.
CMD ["whymatch", "serve", "--host", "0.0.0.0", "--port", "8000"]
