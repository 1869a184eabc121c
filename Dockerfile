# syntax=docker/dockerfile:1
# Sightline for an NVIDIA GPU: docker build -t sightline . && docker run --gpus all -p 127.0.0.1:8000:8000 sightline
# For a CPU: docker build -t sightline --build-arg EXTRA= --build-arg CONSTRAINTS=constraints.txt \
#                --build-arg INDEX=https://download.pytorch.org/whl/cpu .
FROM python:3.12-slim-trixie AS build
ARG EXTRA=[gpu]
ARG CONSTRAINTS=constraints-gpu.txt
ARG INDEX=
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /source
RUN python -m venv /opt/sightline
ENV PATH=/opt/sightline/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY pyproject.toml README.md LICENSE constraints.txt constraints-gpu.txt ./
COPY sightline sightline
RUN pip install --constraint "$CONSTRAINTS" ${INDEX:+--extra-index-url "$INDEX"} "./$EXTRA"

FROM python:3.12-slim-trixie
# Triton builds the functions that launch its kernels with a C compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 sightline \
    && install --directory --owner=sightline /cache
COPY --from=build /opt/sightline /opt/sightline
# Checkpoints of the Hub and compiled kernels; mount a volume there to keep them.
ENV PATH=/opt/sightline/bin:$PATH HF_HOME=/cache/huggingface TRITON_CACHE_DIR=/cache/triton XDG_CACHE_HOME=/cache
USER 10001
WORKDIR /home/sightline
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["sightline"]
CMD ["serve", "--host", "0.0.0.0"]
