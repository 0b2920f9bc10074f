# An image of tfdist that reaches InfiniBand and RoCE: the user's side of the kernel's verbs, which NCCL, UCX and
# libfabric open where they find it. docs/containers.md says what else a container needs.
#
#   docker build -f docker/rdma.Dockerfile --build-arg IMAGE=tfdist:cuda -t tfdist:cuda-rdma .
ARG IMAGE=tfdist:cuda
# hadolint ignore=DL3006
FROM ${IMAGE}
USER root
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ibverbs-providers librdmacm1 \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
USER tfdist
