# make image BUILD='--tag transformer-pipeline'      docs/commands.md, Container, says how to run it; its command is `make repro`.
# What a cluster needs (S3, PostgreSQL), or `make test`: --build-arg EXTRAS=cluster, --build-arg EXTRAS=dev
# Other packages: --build-arg PACKAGES='dvc[gs]'
# A smaller image, without CUDA: --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
FROM python:3.11-slim

# The ssh client is for repositories and DVC remotes; NCCL loads libibverbs and its providers for InfiniBand and RoCE; torch compiles kernels for
# a GPU with gcc.
# Debian drops old patch versions from its mirrors, so a pinned version of a package would soon not build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc git ibverbs-providers libc6-dev libibverbs1 make openssh-client \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home pipeline

USER 1000:1000
WORKDIR /home/pipeline/project
# Prefect's worker for Kubernetes starts a run as `prefect flow-run execute`.
ENV PATH=/home/pipeline/project/.venv/bin:$PATH
# pip and git refuse or warn about folders of another user, so everything here belongs to this one; the volumes' mount points too.
RUN mkdir -p .dvc/cache .state transformer_core flows

# The packages change seldom and cost gigabytes: their layer depends on these files alone.
ARG PIP_EXTRA_INDEX_URL=
ARG EXTRAS=
ARG PACKAGES=
COPY --chown=1000:1000 pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY --chown=1000:1000 transformer_core/__init__.py transformer_core/
COPY --chown=1000:1000 flows/__init__.py flows/
RUN PIP_NO_CACHE_DIR=1 make install

COPY --chown=1000:1000 . .
# The files above may carry a later time than a cached layer's installation; their content is the same. DVC compares with git.
RUN touch .venv/.installed \
    && git init --quiet \
    && git add --all \
    && git -c user.name=pipeline -c user.email=pipeline@localhost commit --quiet --message "The files of this image"
CMD ["make", "repro"]
