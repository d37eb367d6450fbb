# Programs that check the tree. tools/go.mod pins them; they are built once into .tools/.
TOOLS := $(CURDIR)/.tools

##@ Check
$(TOOLS)/golangci-lint: tools/go.mod
	@mkdir -p $(TOOLS)
	cd tools && GOWORK=off go build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/govulncheck: tools/go.mod
	@mkdir -p $(TOOLS)
	cd tools && GOWORK=off go build -o $@ golang.org/x/vuln/cmd/govulncheck

.PHONY: lint $(MODULES:%=lint/%)
lint: $(MODULES:%=lint/%) ## Lint all modules (golangci-lint; .golangci.yaml draws the arrows between modules)
lint/%: $(TOOLS)/golangci-lint
	cd $* && $(TOOLS)/golangci-lint run --config $(CURDIR)/.golangci.yaml ./...

# GOVULNDB names another database, where https://vuln.go.dev cannot be reached.
.PHONY: vulncheck $(MODULES:%=vulncheck/%)
vulncheck: $(MODULES:%=vulncheck/%) ## Look for known vulnerabilities that the code can reach
vulncheck/%: $(TOOLS)/govulncheck
	cd $* && $(TOOLS)/govulncheck $(if $(GOVULNDB),-db $(GOVULNDB)) ./...
