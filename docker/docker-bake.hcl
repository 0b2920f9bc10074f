# The images of docker/Dockerfile, for `docker buildx bake` in the root of a clone. `tfdist image build` chooses the
# variables so that they go together; by hand:
#
#   KERAS_VERSION=3.14.1 docker buildx bake --file docker/docker-bake.hcl --load cpu
#
# A release that is empty is that of docker/versions.env. It is no build argument then, so that the layers are those of
# a plain `docker build`.
variable "BASE_IMAGE" { default = "" }
variable "EXPECTED_PYTHON" { default = "" }
variable "TENSORFLOW_VERSION" { default = "" }
variable "KERAS_VERSION" { default = "" }
variable "NUMPY_VERSION" { default = "" }
variable "CUDA_TOOLKIT_VERSION" { default = "" }
variable "EXTRA_PACKAGES" { default = "" }
variable "REVISION" { default = "" }
variable "UNLOCKED" { default = "" }

group "default" { targets = ["cpu"] }

target "image" {
  matrix     = { kind = ["cpu", "cuda", "data-service", "dev"] }
  name       = kind
  dockerfile = "docker/Dockerfile"
  target     = kind
  tags       = ["tfdist:${kind}"]
  args = { for name, value in {
    BASE_IMAGE           = BASE_IMAGE
    EXPECTED_PYTHON      = EXPECTED_PYTHON
    TENSORFLOW_VERSION   = TENSORFLOW_VERSION
    KERAS_VERSION        = KERAS_VERSION
    NUMPY_VERSION        = NUMPY_VERSION
    CUDA_TOOLKIT_VERSION = CUDA_TOOLKIT_VERSION
    EXTRA_PACKAGES       = EXTRA_PACKAGES
    REVISION             = REVISION
    UNLOCKED             = UNLOCKED
  } : name => value if value != "" }
}
