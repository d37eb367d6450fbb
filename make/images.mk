# Container images: a static binary without a base image, built by docker from <component>/Dockerfile. VERSION, on the command line or in the
# environment, replaces the versions of versions.yaml.
IMAGES := $(shell sed -n 's/^  \([^:]*\): {.*image: .*/\1/p' versions.yaml)
field = $(shell sed -n 's|^  $(1): {.*$(2): \([^,}]*\).*|\1|p' versions.yaml)
image_version = $(if $(filter command line environment,$(origin VERSION)),$(VERSION),$(call field,$(1),next))
# Registry and path of the images' names.
IMAGE_PREFIX ?= ghcr.io/longshore-csi
OWN_IMAGES = $(foreach m,$(IMAGES),$(IMAGE_PREFIX)/$(call field,$(m),image):$(call image_version,$(m)))
ARCH ?= $(shell go env GOARCH)
# Further options of docker build, such as --no-cache.
IMAGE_OPTIONS ?=
# BASE=NAME:TAG on the command line is for the images that take one.
BASE_GIVEN := $(if $(filter command line,$(origin BASE)),$(BASE))
base = $(if $(and $(BASE_GIVEN),$(or $(filter image/$(1),$(MAKECMDGOALS)),$(shell grep -l '^ARG BASE' $(1)/Dockerfile))),--build-arg BASE=$(BASE))

##@ Images
.PHONY: images $(IMAGES:%=image/%)
images: $(IMAGES:%=image/%) ## Build all container images, and their variants -nonroot; one: make image/attacher VERSION=v1.2.3 ARCH=arm64 (BASE, IMAGE_OPTIONS)
$(IMAGES:%=image/%): image/%: $(TOOLS)/sbom
	@deploy/image $* $(call field,$*,binary) $(IMAGE_PREFIX)/$(call field,$*,image) $(call image_version,$*) $(strip $(ARCH) $(call base,$*) $(IMAGE_OPTIONS))

$(TOOLS)/sbom: $(wildcard tools/cmd/sbom/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && GOWORK=off go build -o $@ ./cmd/sbom
