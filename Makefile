# Longshore. `make` alone explains itself.
.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
# Where Debian has programs like mkfs.xfs, which plain `su` leaves out, and where make/setup puts some.
export PATH := $(PATH):/usr/local/bin:/usr/sbin:/sbin
.DELETE_ON_ERROR:

include make/modules.mk make/tools.mk make/test.mk make/cluster.mk make/images.mk make/kind.mk make/suites.mk

##@ General
.PHONY: help
help: ## Show this help; build, vet, lint, tidy, verify and test take a module: make test/attacher
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z0-9_-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: precommit
precommit: tidy fmt lint verify test ## Everything a change must pass before it is committed

# For programs that prepare a machine before they run other targets; `make up` and `make test` do this themselves.
.PHONY: deps
deps: test-setup
