# The training image, for machines with NVIDIA GPUs.
#   docker build -t azr .
#   docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD/orz_ckpt:/azr/orz_ckpt" azr
#   then, inside:  python -m playground.RECIPE --help
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential bubblewrap git python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /azr
ENV PATH=/azr/.venv/bin:$PATH PIP_NO_CACHE_DIR=1

# The packages change rarely, so they have a layer of their own.
COPY Makefile pyproject.toml ./
COPY requirements requirements
RUN make install FLAVOUR=gpu

COPY . .
RUN pip install --no-deps --no-build-isolation -e .

ENTRYPOINT ["/bin/bash"]
