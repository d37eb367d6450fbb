# Tests run with the race detector. Their events are kept in .tools/results, so that the whole can be summed up. `make verify` vets them.
RESULTS := $(CURDIR)/.tools/results
# The time limit is there for tests that hang: on a new machine devcluster's first builds the control plane, which takes minutes.
TESTFLAGS ?= -race -vet=off -timeout 30m
# Modules that are tested at a time: the end-to-end suite, which is the first, takes as long as all others, and waits most of it.
TESTJOBS ?= 2
# The end-to-end suite drives processes of its own; the detector would only watch the driver's seat.
# Its result is never taken from the cache: go does not know which programs it ran.
# Where tests play at the same time they all wait for kubelets, so that there may be more of them than processors.
TESTFLAGS_e2e := -count=1 -vet=off -timeout 60m -parallel 16
# The driver that is killed at every fault point is a process of its own two thousand times: what the detector would find in it, the other
# tests show as well.
TESTFLAGS_hostpathdriver = $(TESTFLAGS) -skip '^TestWalk'
TESTALSO_hostpathdriver = $(filter-out -race,$(TESTFLAGS)) -run '^TestWalk' .
# Results of tests that look at other modules are not taken from the cache, either.
TESTFLAGS_tools = $(TESTFLAGS) -count=1

##@ Test
.PHONY: test $(MODULES:%=test/%)
test: ## Run all tests: units, csi-sanity, end to end (needs root for mounts; says what it skips otherwise)
	@rm -rf $(RESULTS)
	@failed=0; $(MAKE) --no-print-directory -k -j$(TESTJOBS) --output-sync=target $(addprefix test/,e2e $(filter-out e2e,$(MODULES))) test-vm || failed=1; \
	$(TOOLS)/testsum -total $(RESULTS)/*.json && exit $$failed
$(MODULES:%=test/%): test/%: $(TOOLS)/testsum | test-needs
	@mkdir -p $(RESULTS)
	@echo "== $*"
	@cd $* && { $(call gotest,$(or $(TESTFLAGS_$*),$(TESTFLAGS)) ./...); $(if $(TESTALSO_$*),$(call gotest,$(TESTALSO_$*));) } | $(TOOLS)/testsum -keep $(RESULTS)/$(subst /,-,$*).json
# The race detector needs cgo.
gotest = $(if $(filter -race,$(1)),CGO_ENABLED=1 )go test -json $(1)

# Tests of hostpathdriver that need a kernel with more than this machine's may have: those that skip themselves elsewhere.
VM_RUN ?= ^TestOnQuotas$$|^TestWalkGrown$$|^TestKernelContract$$/^ext[34]$$/Grow
VM_PACKAGES ?= . ./internal/quota ./internal/backend ./internal/filesystem
.PHONY: test-vm
test-vm: $(TOOLS)/vmtest $(TOOLS)/testsum ## Run tests that need another kernel in a virtual machine (VM_RUN, VM_PACKAGES)
	@mkdir -p $(RESULTS)
	@echo "== virtual machine"
	@cd hostpathdriver && $(TOOLS)/vmtest -run '$(VM_RUN)' $(VM_PACKAGES) | $(TOOLS)/testsum -keep $(RESULTS)/vm.json

# What the race detector and the tests need of the system.
.PHONY: test-needs
test-needs:
	@for c in $(firstword $(shell go env CC)) losetup; do command -v $$c >/dev/null || { echo "tests need $$c: \`make deps\` installs it (Debian, Ubuntu)"; exit 1; }; done

$(TOOLS)/testsum: $(wildcard tools/cmd/testsum/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && go build -o $@ ./cmd/testsum

# It is the machine's first process, too, where there is nothing else.
$(TOOLS)/vmtest: $(wildcard tools/cmd/vmtest/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && go build -o $@ ./cmd/vmtest

.PHONY: bench
bench: ## Measure claim to Bound and claim to mounted at 1 and 100 claims, and API writes per claim
	cd e2e && go test -run '^$$' -bench . -benchtime 1x -timeout 30m ./...
