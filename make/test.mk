# Tests of modules that start goroutines run with the race detector. Their events are kept in .tools/results, so that the whole can be summed up. `make verify` vets them.
RESULTS := $(CURDIR)/.tools/results
# The time limit is there for tests that hang: on a new machine devcluster's first builds the control plane, which takes minutes.
# With new seeds (docs/testing.md) a result of the cache shows nothing.
TESTFLAGS ?= -race -vet=off -timeout 60m$(if $(LONGSHORE_EXHAUSTIVE), -count=1)
# Modules that are tested at a time: the end-to-end suite waits for processes most of its time, the others for a disk now and then.
TESTJOBS ?= 3
# The end-to-end suite drives processes of its own; the detector would only watch the driver's seat.
# Its result is never taken from the cache: go does not know which programs it ran.
# Where tests play at the same time they all wait for kubelets, so that there may be more of them than processors.
# Tests that kill processes take as long as all others: they have a cluster of their own, beside the others.
E2E := -count=1 -vet=off -timeout 60m -parallel 16
TESTFLAGS_e2e := $(E2E) -skip KilledInTheMiddle
TESTBESIDE_e2e = $(E2E) -run KilledInTheMiddle .
# The driver that is killed at every fault point is a process of its own two thousand times: what the detector would find in it, the other
# tests show as well.
TESTFLAGS_hostpathdriver = $(TESTFLAGS) -skip '^TestWalk'
# Drivers of vendors have the whole walk of drivertest: at each fault point one fate in turn, and in `make exhaustive` all of them.
WALKED := $(filter examples/%,$(MODULES))
$(foreach module,$(WALKED),$(eval TESTFLAGS_$(module) = $$(TESTFLAGS)$(if $(LONGSHORE_EXHAUSTIVE),, -short)))
TESTALSO_resizer = $(filter-out -race,$(TESTFLAGS)) -run '^TestWalk$$' . -walk.steps=$(WALKSTEPS)
# Walks have the same seeds each time (docs/testing.md): only more steps, and a new seed, see more.
WALKSTEPS = $(if $(LONGSHORE_EXHAUSTIVE),10000,3000)
# The table of requirements names tests of other modules, whose files a cached result does not depend on.
TESTALSO_nodeagent = $(TESTFLAGS) -count=1 -run '^TestRequirements$$' .
TESTALSO_snapshotcontroller = $(TESTALSO_resizer)
TESTALSO_snapshotter = $(TESTALSO_resizer)
# Its tales wait for disks most of the time.
TESTALSO_hostpathdriver = $(filter-out -race,$(TESTFLAGS)) -parallel 8 -run '^TestWalk' . $(if $(LONGSHORE_EXHAUSTIVE),-exhaustive,-every=3)
# These two start no goroutine. Results of tests that read other modules are not taken from the cache.
TESTFLAGS_deploy = $(filter-out -race,$(TESTFLAGS)) -count=1
TESTFLAGS_tools = $(filter-out -race,$(TESTFLAGS)) -count=1

##@ Test
.PHONY: test $(TESTED:%=test/%)
# What `make test` runs: all modules. Fewer: make test TESTS="test/attacher test/e2e"
TESTS ?= $(addprefix test/,$(LONGEST)) $(addprefix test/,$(filter-out $(LONGEST),$(TESTED)))
# They come first, so that none of them is left alone at the end.
LONGEST := e2e hostpathdriver
# The parts of `make test` for CI, which runs the last beside kind clusters, too, and the second after the builds of what it needs: programs
# that are not of this tree. Loop devices are the machine's: kubelets in containers detach them by their numbers, which may be those of a test's devices by then.
ON_CLUSTERS := e2e devcluster
WITH_DEVICES := hostpathdriver driverkit driverkit/drivertest kubeletplugin nodeagent hostpathdriver/test/sanity $(filter examples/%,$(MODULES))
# One module at a time in each: CI runs the three beside each other, and go test has two processes for each module.
.PHONY: test-with-devices test-on-clusters test-without-devices
test-with-devices test-on-clusters test-without-devices: TESTJOBS := 1
test-with-devices: TESTS := $(WITH_DEVICES:%=test/%)
test-on-clusters: TESTS := $(ON_CLUSTERS:%=test/%)
test-without-devices: TESTS := $(addprefix test/,$(filter-out $(ON_CLUSTERS) $(WITH_DEVICES),$(TESTED)))
test-with-devices test-on-clusters test-without-devices: test-setup
	@$(MAKE) --no-print-directory SETUP=done TESTJOBS=$(TESTJOBS) "TESTS=$(TESTS)" "RESULTS=$(RESULTS)/$@" test
test: | test-setup ## Run all tests: units, csi-sanity, end to end; skips by name those that need root or a program that is missing
	@rm -rf $(RESULTS)
	@failed=0; $(MAKE) --no-print-directory -k -j$(TESTJOBS) --output-sync=target SETUP=done $(TESTS) || failed=1; \
	[ ! -e $(RESULTS) ] || $(TOOLS)/testsum -total $(RESULTS)/*.json && exit $$failed
$(TESTED:%=test/%): test/%: $(TOOLS)/testsum | test-setup
	@echo "== $*"
	@$(if $(LONGSHORE_EXHAUSTIVE),LONGSHORE_STAMPS= )make/unchanged "test $*" -m $* $(READS_$*) -- $(MAKE) --no-print-directory SETUP=done run/$*
# The tests of a module themselves: test/% runs them, in CI unless nothing that they depend on has changed (make/unchanged) and they have no new seeds.
.PHONY: $(TESTED:%=run/%)
$(TESTED:%=run/%): run/%:
	@mkdir -p $(RESULTS)
	@cd $* && $(took) { $(if $(and $(TESTBESIDE_$*),$(all)),beside=$$(mktemp); $(call gotest,$(TESTBESIDE_$*)) >$$beside &) \
	$(call gotest,$(or $(TESTFLAGS_$*),$(TESTFLAGS)) $(packages)); $(if $(and $(TESTALSO_$*),$(all)),$(call gotest,$(TESTALSO_$*));) \
	$(if $(and $(TESTBESIDE_$*),$(all)),wait; cat $$beside; rm -f $$beside;) } | \
	$(TOOLS)/testsum -keep $(RESULTS)/$(subst /,-,$*).json
# Prints the seconds that a pipeline takes, beside its output.
took = exec 2>&1; TIMEFORMAT="== $* took %0Rs (processors: %0Us user, %0Ss system)"; time
# The race detector needs cgo. Without a C compiler tests run without it. Beside it, a reader that modifies an object of a cache panics.
gotest = $(if $(and $(filter -race,$(1)),$(RACE)),CGO_ENABLED=1 KUBE_CACHE_MUTATION_DETECTOR=true go test -json $(1),go test -json $(filter-out -race,$(1)))
RACE = $(shell make/setup race)
# Packages of a module that are tested: TESTPACKAGES, or TESTPACKAGES_<module>, or all. A choice by TESTPACKAGES is tested without what TESTALSO and TESTBESIDE add.
packages = $(or $(TESTPACKAGES),$(TESTPACKAGES_$*),./...)
all = $(if $(TESTPACKAGES),,all)
# All but the benchmarks, which `make bench` compiles. `make vet`, verify and lint check them, too.
TESTPACKAGES_e2e = $(shell cd e2e && go list ./... | grep -v '/e2e/bench$$')

# The programs of this tree that run tests and sum them up, for those that run several of these targets beside each other.
.PHONY: test-tools
test-tools: $(TOOLS)/testsum $(TOOLS)/specsum

# Programs that tests need: they are installed where that is possible, and those that are missing are listed.
.PHONY: test-setup
test-setup:
	@$(if $(filter done,$(SETUP)),:,make/setup test)

$(TOOLS)/testsum: $(wildcard tools/cmd/testsum/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && GOWORK=off go build -o $@ ./cmd/testsum
