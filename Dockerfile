# The training image, for machines with NVIDIA GPUs (driver 580 or newer).
#   docker build -t azr --build-arg UID=$(id -u) .
#   docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 --ulimit nofile=65536 \
#       --group-add "$(stat -c %g /var/run/docker.sock)" \
#       -v "$PWD/orz_ckpt:/azr/orz_ckpt" -v /var/run/docker.sock:/var/run/docker.sock azr
#   then, inside:  azr doctor
# docker/compose.yaml says the same once, and starts a cluster; docs/cluster.md tells what each of it is for.
# Another base and FLAVOUR=cpu make it for machines without a GPU: .ci/image.sh builds that and tries it.
ARG BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${BASE}
ARG FLAVOUR=gpu

# vLLM's libraries compile kernels for the GPUs they find, and those for CPUs load libnuma; NCCL loads
# libibverbs and its providers to use InfiniBand; bubblewrap is the executor's wall without a Docker engine.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential bubblewrap git ibverbs-providers libibverbs1 libnuma1 python3 python3-dev python3-venv rdma-core \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /azr
ENV PATH=/azr/.venv/bin:$PATH PIP_NO_CACHE_DIR=1

# Where packages come from, if not from PyPI: --build-arg PIP_INDEX_URL=... names a mirror, PIP_FIND_LINKS with PIP_NO_INDEX=1
# a page of wheels. pip reads them from the environment.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX

# The packages change rarely, so they have a layer of their own.
COPY Makefile pyproject.toml ./
COPY requirements requirements
RUN make install FLAVOUR=${FLAVOUR}

COPY . .
RUN pip install --no-deps --no-build-isolation -e .

# Nothing in the image belongs to the user of a run but its home and the folders that are mounted. --build-arg UID=$(id -u)
# makes it the owner of a machine's own folders.
ARG UID=1000
# Slim images may lack useradd.
RUN echo "azr:x:${UID}:${UID}::/home/azr:/bin/bash" >> /etc/passwd \
    && echo "azr:x:${UID}:" >> /etc/group \
    && install -d -o azr -g azr /home/azr orz_ckpt /home/azr/.cache /home/azr/.cache/azr /home/azr/.cache/huggingface
USER azr

CMD ["/bin/bash"]
