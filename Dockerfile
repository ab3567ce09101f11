FROM python:3.12-slim

# torch.compile needs a compiler.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# PyTorch is that of PyPI, with CUDA; an index of other builds may be named.
ARG PIP_EXTRA_INDEX_URL=
WORKDIR /opt/trivium
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt '.[serve]'

RUN useradd --create-home trivium
USER trivium
WORKDIR /models
EXPOSE 8000
ENTRYPOINT ["trivium"]
CMD ["--help"]
