# Tests of modules that start goroutines run with the race detector. Their events are kept in .tools/results, so that the whole can be summed up. `make verify` vets them.
RESULTS := $(CURDIR)/.tools/results
# The time limit is there for tests that hang: on a new machine devcluster's first builds the control plane, which takes minutes.
TESTFLAGS ?= -race -vet=off -timeout 30m
# Modules that are tested at a time: the end-to-end suite waits for processes most of its time, the others for a disk now and then.
TESTJOBS ?= 3
# The end-to-end suite drives processes of its own; the detector would only watch the driver's seat.
# Its result is never taken from the cache: go does not know which programs it ran.
# Where tests play at the same time they all wait for kubelets, so that there may be more of them than processors.
TESTFLAGS_e2e := -count=1 -vet=off -timeout 60m -parallel 16
# The driver that is killed at every fault point is a process of its own two thousand times: what the detector would find in it, the other
# tests show as well.
TESTFLAGS_hostpathdriver = $(TESTFLAGS) -skip '^TestWalk'
TESTALSO_resizer = $(filter-out -race,$(TESTFLAGS)) -run '^TestWalk$$' . -walk.steps=$(WALKSTEPS)
# Every run has another seed, so that many shorter walks see as much as a long one.
WALKSTEPS = $(if $(LONGSHORE_EXHAUSTIVE),10000,3000)
# The table of requirements names tests of other modules, whose files a cached result does not depend on.
TESTALSO_kubeletplugin = $(TESTFLAGS) -count=1 -run '^TestRequirements$$' .
TESTALSO_snapshotcontroller = $(TESTALSO_resizer)
TESTALSO_snapshotter = $(TESTALSO_resizer)
TESTALSO_hostpathdriver = $(filter-out -race,$(TESTFLAGS)) -run '^TestWalk' . $(if $(LONGSHORE_EXHAUSTIVE),-exhaustive)
# These two start no goroutine. Results of tests that read other modules are not taken from the cache.
TESTFLAGS_deploy = $(filter-out -race,$(TESTFLAGS)) -count=1
TESTFLAGS_tools = $(filter-out -race,$(TESTFLAGS)) -count=1

##@ Test
.PHONY: test $(MODULES:%=test/%)
# What `make test` runs: all modules. Fewer: make test TESTS="test/attacher test/e2e"
TESTS ?= $(addprefix test/,$(LONGEST)) $(addprefix test/,$(filter-out $(LONGEST),$(MODULES)))
# They come first, so that none of them is left alone at the end.
LONGEST := e2e hostpathdriver
test: | test-setup ## Run all tests: units, csi-sanity, end to end; skips by name those that need root or a program that is missing
	@rm -rf $(RESULTS)
	@failed=0; $(MAKE) --no-print-directory -k -j$(TESTJOBS) --output-sync=target SETUP=done $(TESTS) || failed=1; \
	$(TOOLS)/testsum -total $(RESULTS)/*.json && exit $$failed
$(MODULES:%=test/%): test/%: $(TOOLS)/testsum | test-setup
	@mkdir -p $(RESULTS)
	@echo "== $*"
	@cd $* && $(took) { $(call gotest,$(or $(TESTFLAGS_$*),$(TESTFLAGS)) $(TESTPACKAGES)); $(if $(and $(TESTALSO_$*),$(filter ./...,$(TESTPACKAGES))),$(call gotest,$(TESTALSO_$*));) } | \
	$(TOOLS)/testsum -keep $(RESULTS)/$(subst /,-,$*).json
# Prints the seconds that a pipeline takes, beside its output.
took = exec 2>&1; TIMEFORMAT="== $* took %0Rs (processors: %0Us user, %0Ss system)"; time
# The race detector needs cgo. Without a C compiler tests run without it. Beside it, a reader that modifies an object of a cache panics.
gotest = $(if $(and $(filter -race,$(1)),$(RACE)),CGO_ENABLED=1 KUBE_CACHE_MUTATION_DETECTOR=true go test -json $(1),go test -json $(filter-out -race,$(1)))
RACE = $(shell make/setup race)
# Packages of a module that are tested; other than all are tested without what TESTALSO adds.
TESTPACKAGES ?= ./...

.PHONY: exhaustive
exhaustive: ## Run all that CI runs and nothing left out: every form of deployment, the longest walks (hours)
	@LONGSHORE_EXHAUSTIVE=1 .ci/run

# The programs of this tree that run tests and sum them up, for those that run several of these targets beside each other.
.PHONY: test-tools
test-tools: $(TOOLS)/testsum $(TOOLS)/specsum

# Programs that tests need: they are installed where that is possible, and those that are missing are listed.
.PHONY: test-setup
test-setup:
	@$(if $(filter done,$(SETUP)),:,make/setup test)

$(TOOLS)/testsum: $(wildcard tools/cmd/testsum/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && go build -o $@ ./cmd/testsum

.PHONY: bench
bench: ## Measure claim to Bound and to mounted, and API writes per claim; BENCH=writes: of the provisioner alone; BENCH=nodes: requests of N instances for one node each; BENCH=provision|failover|attach|resize|snapshot|memory: kubernetes-csi's program and ours (N=1000 MINUTES=10 ROUNDS=1 FOREIGN=1 COMPONENT=csi-attacher for memory QUIET=30)
	$(if $(filter-out claim writes nodes provision failover attach resize snapshot memory,$(BENCH)),$(error BENCH=$(BENCH): must be claim, writes, nodes, provision, failover, attach, resize, snapshot or memory))
	cd e2e && BENCH_N=$(N) BENCH_FOREIGN=$(FOREIGN) BENCH_QUIET=$(QUIET) BENCH_MINUTES=$(MINUTES) BENCH_COMPONENT=$(COMPONENT) \
		go test -run '^$$' -bench '(?i)^Benchmark$(or $(BENCH),claim)$$' -benchtime $(or $(ROUNDS),1)x -timeout 3h .

.PHONY: bench-nodes
bench-nodes: NODES = 200
bench-nodes: PODS = 1000
bench-nodes: ## Measure pods with volumes on many nodes in one process, on one node, and on one volume: creation to Running, memory of a node, nothing left (NODES=200 PODS=1000 RATE=15 pods a second)
	cd e2e && BENCH_NODES=$(NODES) BENCH_PODS=$(PODS) BENCH_RATE=$(RATE) go test -run '^$$' -bench '^BenchmarkManyNodes$$' -benchtime 1x -timeout 1h .

.PHONY: leaktest
leaktest: ## Kill the provisioner while claims come and go, and look for leaked volumes (N=3000 SEED=1..5 STORE=leases KILL=kill,term,lease FAULTS=late,lost,hang,...)
	cd e2e && LEAKTEST_N=$(or $(N),1000) LEAKTEST_SEED=$(SEED) LEAKTEST_STORE=$(STORE) LEAKTEST_KILL=$(KILL) \
		LEAKTEST_FAULTS=$(or $(FAULTS),late$(,)lost$(,)hang$(,)crash$(,)uncertain-then-final$(,)already-exists$(,)api-away) \
		go test -count=1 -v -run '^TestLeaks$$' -timeout 2h .
.PHONY: leaktest-snapshots
leaktest-snapshots: ## Kill snapshot-controller and csi-snapshotter while snapshots and groups come and go, and look for leaks; with halves of kubernetes-csi's, these are reported (N=2000 GROUPS=200 SEED=1..5 PAIRS=ours/ours,ours/upstream,upstream/ours,upstream/upstream)
	cd e2e && LEAKTEST_N=$(or $(N),2000) LEAKTEST_GROUPS=$(or $(GROUPS),200) LEAKTEST_SEED=$(SEED) \
		LEAKTEST_PAIRS=$(or $(PAIRS),ours/ours$(,)ours/upstream$(,)upstream/ours$(,)upstream/upstream) \
		go test -count=1 -v -run '^TestSnapshotLeaks$$' -timeout 3h .
# A comma in an argument of a function.
, := ,

# Their directories need not outlive the machine, and fsync of a disk would take most of the time.
IN_MEMORY = $(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm GOTMPDIR=$(or $(TMPDIR),/tmp))
.PHONY: model
model: ## Run whole node agents at random in model time, on two nodes with faults and kills, and check invariants (SEED=N STEPS=20000)
	cd kubeletplugin && $(IN_MEMORY) SEED=$(SEED) MODEL_STEPS=$(or $(STEPS),20000) go test -count=1 -v -run '^TestModel$$' -timeout 1h ./internal/agent | grep -v '^=== '
.PHONY: model-mutants
model-mutants: ## Put deliberate bugs into the node agent, one at a time, and see whether `make model` finds them (SEED=N MUTANTS=N)
	cd kubeletplugin && $(IN_MEMORY) SEED=$(SEED) MUTANTS=$(or $(MUTANTS),1000) go test -count=1 -v -run '^TestMutants$$' -timeout 2h ./internal/agent | grep -v '^=== '
.PHONY: e2e-migration
e2e-migration: ## Make and delete volumes of an in-tree plugin with a driver that replaces it, on a development cluster
	cd e2e && go test -count=1 -v -run '^TestMigration$$' -timeout 30m .

.PHONY: try-new-machine
try-new-machine: ## Try `make up` and `make test` in a bare Debian root file system with Go (root; FULL=1: without caches, all tests)
	@tools/try-new-machine
