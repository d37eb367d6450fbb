# Longshore. `make` alone explains itself.
.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:

include make/modules.mk make/tools.mk make/test.mk make/cluster.mk make/images.mk make/kind.mk

##@ General
.PHONY: help
help: ## Show this help; build, vet, lint, tidy, verify and test also take a module: make test/attacher
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: precommit
precommit: tidy fmt lint verify test ## Everything a change must pass before it is committed

.PHONY: deps
deps: ## Install the system packages that tests need (Debian, Ubuntu; needs root)
	apt-get update
	apt-get install -y --no-install-recommends git gcc libc6-dev make mount util-linux e2fsprogs xfsprogs qemu-system-x86
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || $(MAKE) --no-print-directory deps-prometheus || echo "prometheus and promtool cannot be had: their tests will be skipped"

# The two programs of Debian's package, without the package: that would start a server on port 9090 of all addresses.
.PHONY: deps-prometheus
deps-prometheus:
	@dir=$$(mktemp -d) && trap 'rm -rf '$$dir EXIT && cd $$dir && apt-get -o APT::Sandbox::User=root download prometheus && \
	dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x -C /usr/local/bin --strip-components=3 ./usr/bin/prometheus ./usr/bin/promtool
