# Programs that check the tree. tools/go.mod pins them; each pin is built once on a machine, outside of the checkout.
TOOLS := $(CURDIR)/.tools
PINNED := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/longshore/tools/$(shell sha256sum tools/go.sum | cut -c1-12)

##@ Check
$(PINNED)/golangci-lint:
	@mkdir -p $(PINNED)
	cd tools && GOWORK=off go build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(PINNED)/govulncheck:
	@mkdir -p $(PINNED)
	cd tools && GOWORK=off go build -o $@ golang.org/x/vuln/cmd/govulncheck

.PHONY: lint lint/modules $(MODULES:%=lint/%) $(OUTSIDE_CODE:%=lint/%)
lint: lint/modules $(OUTSIDE_CODE:%=lint/%) ## Lint all modules (golangci-lint; .golangci.yaml draws the arrows between modules)
# All at once: what modules have in common is analysed once, which takes most of the time.
lint/modules: $(PINNED)/golangci-lint
	$(PINNED)/golangci-lint run --allow-parallel-runners --config .golangci.yaml $(MODULES:%=./%/...)
$(MODULES:%=lint/%): lint/%: $(PINNED)/golangci-lint
	cd $* && $(PINNED)/golangci-lint run --allow-parallel-runners --config $(CURDIR)/.golangci.yaml ./...
# The first time, a minute more than what `make vet/e2e/k8s` compiles.
$(OUTSIDE_CODE:%=lint/%): lint/%: $(PINNED)/golangci-lint
	cd $* && GOWORK=off $(PINNED)/golangci-lint run --allow-parallel-runners --config $(CURDIR)/.golangci.yaml ./...

# GOVULNDB names another database, where https://vuln.go.dev cannot be reached.
.PHONY: vulncheck $(MODULES:%=vulncheck/%) $(OUTSIDE_CODE:%=vulncheck/%)
vulncheck: $(MODULES:%=vulncheck/%) $(OUTSIDE_CODE:%=vulncheck/%) ## Look for known vulnerabilities that the code can reach
$(MODULES:%=vulncheck/%): vulncheck/%: $(PINNED)/govulncheck
	cd $* && $(PINNED)/govulncheck $(if $(GOVULNDB),-db $(GOVULNDB)) ./...
# Linters, Kubernetes and its suite, which only run in tests: what is known of the versions in go.mod is reported (exit code 3), but it is not
# ours to fix, and may have no fix. devcluster/controlplane, of the same version, has no code from which govulncheck could start.
$(OUTSIDE_CODE:%=vulncheck/%): vulncheck/%: $(PINNED)/govulncheck
	cd $* && GOWORK=off $(PINNED)/govulncheck $(if $(GOVULNDB),-db $(GOVULNDB)) -scan module || test $$? = 3

##@ A driver of your own
$(TOOLS)/newdriver: $(shell find tools/cmd/newdriver -type f)
	@mkdir -p $(TOOLS)
	@cd tools && GOWORK=off go build -o $@ ./cmd/newdriver

# The README.md of the new driver describes the next steps.
.PHONY: new-driver
new-driver: $(TOOLS)/newdriver ## Write the beginning of a CSI driver: NAME=foo.example.com MODULE=example.com/foo OUT=../foo, VENDOR=true to own the source of the kit
	@$(TOOLS)/newdriver -name '$(NAME)' -module '$(MODULE)' -out '$(OUT)' -vendor=$(or $(VENDOR),false)
