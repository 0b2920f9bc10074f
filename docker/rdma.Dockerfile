# A tfdist image for InfiniBand and RoCE: adds the user-space verbs libraries, which NCCL, UCX and libfabric use if
# installed. docs/containers.md explains what else a container needs.
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
