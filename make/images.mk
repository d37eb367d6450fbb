# Container images: a static binary on nothing, built by docker from <component>/Dockerfile. The versions are those of versions.yaml.
IMAGES := $(shell sed -n 's/^  \([^:]*\): {.*image: .*/\1/p' versions.yaml)
field = $(shell sed -n 's|^  $(1): {.*$(2): \([^,}]*\).*|\1|p' versions.yaml)
# What goes before the name: a registry and a path in it.
IMAGE_PREFIX ?= longshore
ARCH ?= $(shell go env GOARCH)
# What docker build is told besides, such as --no-cache.
IMAGE_OPTIONS ?=
# BASE=NAME:TAG on the command line is for the images that take one.
BASE_GIVEN := $(if $(filter command line,$(origin BASE)),$(BASE))
base = $(if $(and $(BASE_GIVEN),$(or $(filter image/$(1),$(MAKECMDGOALS)),$(shell grep -l '^ARG BASE' $(1)/Dockerfile))),--build-arg BASE=$(BASE))

##@ Images
.PHONY: images $(IMAGES:%=image/%)
images: $(IMAGES:%=image/%) ## Build all container images; one: make image/attacher VERSION=v1.2.3 ARCH=arm64 (BASE, IMAGE_OPTIONS)
$(IMAGES:%=image/%): image/%: $(TOOLS)/sbom
	@deploy/image $* $(call field,$*,binary) $(IMAGE_PREFIX)/$(call field,$*,image) $(IMAGE_VERSION) $(strip $(ARCH) $(call base,$*) $(IMAGE_OPTIONS))
$(IMAGES:%=image/%): IMAGE_VERSION = $(if $(filter command line environment,$(origin VERSION)),$(VERSION),$(call field,$*,next))

$(TOOLS)/sbom: $(wildcard tools/cmd/sbom/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && go build -o $@ ./cmd/sbom

.PHONY: try-base-image
try-base-image: ## Make a base image of Debian packages, and the driver's on it, and see that all in it runs
	@deploy/try-base-image
