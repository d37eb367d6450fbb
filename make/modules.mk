# Modules, in the order of their dependencies. `make <verb>/<module>` works on one of them.
MODULES := csikit topology provisioner attacher registrar livenessprobe kubeletplugin hostpathdriver hostpathdriver/test/sanity devcluster deploy e2e tools
BIN := $(CURDIR)/bin

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/longshore-csi/longshore/csikit/version.version=$(VERSION)

##@ Build
.PHONY: build $(MODULES:%=build/%)
build: $(MODULES:%=build/%) ## Build all modules; binaries go to bin/
$(MODULES:%=build/%): build/%:
	@mkdir -p $(BIN)
	cd $* && go build ./...
	@cd $* && if [ -d cmd ]; then CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...; fi

.PHONY: tidy $(MODULES:%=tidy/%)
tidy: $(MODULES:%=tidy/%) ## Tidy all go.mod files
$(MODULES:%=tidy/%): tidy/%:
	cd $* && GOWORK=off go mod tidy

.PHONY: fmt
fmt: ## Format all Go files
	gofmt -w $(MODULES)

.PHONY: vet $(MODULES:%=vet/%)
vet: $(MODULES:%=vet/%) ## Vet all modules
$(MODULES:%=vet/%): vet/%:
	cd $* && go vet ./...

# Each module stands alone: it builds and its tests compile without the workspace, its go.mod is tidy, its files are formatted.
.PHONY: verify $(MODULES:%=verify/%)
verify: $(MODULES:%=verify/%) verify-versions ## Check that every module stands alone and is tidy
$(MODULES:%=verify/%): verify/%:
	@test -z "$$(gofmt -l $*)" || { echo "not formatted: $$(gofmt -l $*)"; exit 1; }
	cd $* && GOWORK=off go mod tidy -diff && GOWORK=off go vet ./...

.PHONY: verify-versions
verify-versions: ## Check versions.yaml against the tree
	cd tools && go run ./cmd/versions -root ..
