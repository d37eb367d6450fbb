# Modules, in the order of their dependencies. `make <verb>/<module>` works on one of them.
MODULES := csikit csikittest topology driverkit driverkit/drivertest provisioner attacher resizer snapshotcontroller snapshotter snapshotmetadata healthmonitor registrar clusterregistrar livenessprobe kubeletplugin nodeagent hostpathdriver hostpathdriver/test/sanity examples/minimal examples/btrfs examples/attached-block examples/nfs examples/embed devcluster deploy e2e
# Modules outside of go.work, which are never tagged: the tools, so that the linters do not decide about the versions of what we ship; and those that
# pin another Kubernetes than the components'. OUTSIDE_CODE are those with Go code.
UPSTREAM := $(patsubst %/go.mod,%,$(wildcard e2e/upstream/*/go.mod))
# Pins of older releases of Kubernetes, whose modules take minutes to download: only the nightly tier verifies them.
OLDER := $(patsubst %/go.mod,%,$(wildcard devcluster/controlplane/v*/go.mod))
OUTSIDE := tools devcluster/controlplane $(OLDER) e2e/k8s $(UPSTREAM)
OUTSIDE_CODE := tools e2e/k8s
TESTED := $(MODULES) tools
# What tests of a module read besides the modules that it requires.
READS_devcluster := deploy examples clusterregistrar/docs
READS_e2e := deploy examples docs nodeagent/docs */docs/rbac.md
READS_hostpathdriver/test/sanity := hostpathdriver/docs
READS_nodeagent := e2e kubeletplugin
READS_snapshotcontroller := snapshotter csikit
READS_snapshotter := csikit
READS_deploy := .
READS_tools := .
BIN := $(CURDIR)/bin

# Everything is compiled in one way, that of releases, but for what runs with the race detector: each dependency is compiled once for all
# on a new machine, and what has not changed is not compiled again in another checkout. e2e/k8s/build and devcluster, whose programs rest
# on 1,900 packages of Kubernetes, do the same, but for the tag: without it gRPC links a page of traces, whose templates call methods by
# name, so that the linker keeps every method there is, a sixth of a program.
export CGO_ENABLED := 0
UNTAGGED := $(filter-out -trimpath -tags=%,$(shell go env GOFLAGS 2>/dev/null)) -trimpath
export GOFLAGS := $(UNTAGGED) -tags=grpcnotrace
$(foreach verb,tidy vet verify lint vulncheck,$(OUTSIDE:%=$(verb)/%)): export GOFLAGS := $(UNTAGGED)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/longshore-csi/longshore/csikit/version.version=$(VERSION)

##@ Build
.PHONY: build $(TESTED:%=build/%)
build: $(TESTED:%=build/%) ## Build all modules; binaries go to bin/
build/tools test/tools run/tools: export GOWORK := off
$(TESTED:%=build/%): build/%:
	@mkdir -p $(BIN)
	cd $* && go build -o /dev/null ./...
	@cd $* && if [ -d cmd ]; then go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...; fi

.PHONY: tidy $(MODULES:%=tidy/%) $(OUTSIDE:%=tidy/%)
tidy: $(MODULES:%=tidy/%) $(OUTSIDE:%=tidy/%) ## Tidy all go.mod files
$(MODULES:%=tidy/%) $(OUTSIDE:%=tidy/%): tidy/%:
	cd $* && GOWORK=off go mod tidy
# Further pins of one module: with which Kubernetes else its programs are built.
	@$(foreach pins,$(notdir $(wildcard $*/v*.mod)),(cd $* && GOWORK=off go mod tidy -modfile=$(pins)) &&) true

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -w $(TESTED)

.PHONY: vet $(MODULES:%=vet/%) $(OUTSIDE_CODE:%=vet/%)
vet: $(MODULES:%=vet/%) $(OUTSIDE_CODE:%=vet/%)
$(MODULES:%=vet/%): vet/%:
	cd $* && go vet ./...
$(OUTSIDE_CODE:%=vet/%): vet/%:
	cd $* && GOWORK=off go vet ./...

# Each module stands alone: it builds and its tests compile without the workspace, its go.mod is tidy, its files are formatted.
.PHONY: verify $(MODULES:%=verify/%) $(OUTSIDE:%=verify/%)
verify: $(MODULES:%=verify/%) $(addprefix verify/,$(filter-out $(if $(LONGSHORE_EXHAUSTIVE),,$(OLDER)),$(OUTSIDE))) verify-versions ## Check that every module builds and is tidy without the others, and versions.yaml
$(MODULES:%=verify/%): verify/%:
	@test -z "$$(gofmt -l $*)" || { echo "not formatted: $$(gofmt -l $*)"; exit 1; }
	cd $* && GOWORK=off go mod tidy -diff && GOWORK=off go vet ./...
$(OUTSIDE:%=verify/%): verify/%:
	@test -z "$$(gofmt -l $*)" || { echo "not formatted: $$(gofmt -l $*)"; exit 1; }
	cd $* && GOWORK=off go mod tidy -diff
	@$(if $(LONGSHORE_EXHAUSTIVE),$(foreach pins,$(notdir $(wildcard $*/v*.mod)),(cd $* && GOWORK=off go mod tidy -diff -modfile=$(pins)) &&)) true
	$(if $(filter $*,$(OUTSIDE_CODE)),cd $* && GOWORK=off go vet ./...)

.PHONY: verify-versions
verify-versions:
	cd tools && GOWORK=off go run ./cmd/versions -root ..
