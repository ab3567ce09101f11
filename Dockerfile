FROM python:3.12-slim

# torch.compile needs a compiler. Its version is that of the base image's distribution.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 trivium

# PyTorch is that of PyPI, with CUDA; an index of other builds may be named.
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /opt/trivium

# The dependencies, with an empty package in place of the code: an edit of the code keeps this layer.
# The folder build/ is removed, because setuptools would prefer its newer, empty __init__.py.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir -p src/trivium && touch src/trivium/__init__.py \
    && pip install --no-cache-dir -c constraints.txt '.[serve]' \
    && rm -rf build src

COPY src ./src
RUN pip install --no-cache-dir --no-deps --force-reinstall .

USER 1000
WORKDIR /models
EXPOSE 8000
ENTRYPOINT ["trivium"]
CMD ["--help"]
