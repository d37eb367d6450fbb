# What takes minutes or hours, and is not part of `make test`. docs/testing.md describes each suite, test and benchmark, and its settings.
# The rules e2e-*, soak-* and bench-* are not for users: they come by SUITE, TEST and BENCH.

# $(call one,GOAL,NAME,VALUES) is the rule for GOAL by the variable NAME, which must be one of VALUES when that goal is made.
one = $(if $(filter $(1),$(MAKECMDGOALS)),$(1)-$(if $(filter-out $(3),$($(2))),$(error $(2)=$($(2)): must be one of: $(3)),$($(2))))
# A comma in an argument of a function.
, := ,

##@ Longer tests (docs/testing.md)
.PHONY: e2e soak bench swap matrix exhaustive
SUITE ?= devcluster
SUITES := devcluster kind k8s k8s-mock k8s-hostpath forms kubelet migration base-image arm64 new-machine
e2e: $(call one,e2e,SUITE,$(SUITES)) ## Run an end-to-end suite: SUITE=devcluster (default), kind, k8s, k8s-mock, k8s-hostpath, forms, kubelet, migration, base-image, arm64 or new-machine
TEST ?= leaks
SOAKS := leaks snapshot-leaks model mutants hostile
soak: $(call one,soak,TEST,$(SOAKS)) ## Run a random test for longer: TEST=leaks (default), snapshot-leaks, model, mutants or hostile (N, SEED)
BENCH ?= claim
BENCHES := claim writes nodes manynodes provision failing failover attach resize snapshot scrape memory
bench: $(call one,bench,BENCH,$(BENCHES)) ## Measure, most beside kubernetes-csi's program: BENCH=claim (default), writes, nodes, manynodes, provision, failing, failover, attach, resize, snapshot, scrape or memory (N)
exhaustive: ## Run all that CI runs and nothing left out: every form of deployment, new seeds, the longest walks (hours)
	@LONGSHORE_EXHAUSTIVE=1 .ci/run

matrix: ## Run the end-to-end tests with each pinned release of Kubernetes, and its own suites with the newest two (RELEASES="v1.36 v1.37")
	@make/matrix $(RELEASES)
# On a cluster of its own, as the driver has the name that ours has.
swap: $(KIND) images ## Swap the sidecars of kubernetes-csi for ours and back on a kind cluster, under load, with their flags and RBAC
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-swap
	@KIND=$(KIND) deploy/kind-up $(KIND_CLUSTER)-swap 1 $(KIND_NODE_IMAGE)
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER)-swap busybox
	@KIND=$(KIND) deploy/try-swap $(KIND_CLUSTER)-swap $$(KIND=$(KIND) deploy/kind-load $(KIND_CLUSTER)-swap $(OWN_IMAGES))
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-swap

.PHONY: $(SUITES:%=e2e-%) $(SOAKS:%=soak-%) $(BENCHES:%=bench-%)
e2e-devcluster: test/e2e

# These three run on a cluster made by `make kind-up deploy`.
# A kubelet changes nothing about these tests, which `make test` runs on a development cluster of the same Kubernetes.
E2E_NO_KUBELET := ^Test(Manifests|DryRun|InlineVolumePolicy|InlineVolumesOfNamedDrivers|MissingParameter|PodWaitsForCapacity|PoolsHave|CapacityOf|CapacityGoes|ClaimsSpread|ClaimIsMade|RetainedVolume|VolumeDeletedBefore)
e2e-kind: $(KIND) $(TOOLS)/testsum
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER) busybox
	@config=$$(mktemp) && trap 'rm -f $$config' EXIT && $(KIND) get kubeconfig --name $(KIND_CLUSTER) >$$config && \
	cd e2e && E2E_KUBECONFIG=$$config go test -json $(TESTFLAGS_e2e) $(if $(filter kubelet,$(E2E_KIND)),-skip '$(E2E_NO_KUBELET)') $(TESTPACKAGES_e2e) | $(TOOLS)/testsum -keep $(TOOLS)/e2e-kind.json && \
	$(TOOLS)/testsum -total $(TOOLS)/e2e-kind.json
e2e-k8s: $(KIND) $(TOOLS)/specsum
	@KIND=$(KIND) SPECSUM=$(TOOLS)/specsum e2e/k8s/run $(KIND_CLUSTER) external
# With the images that `make deploy` has built.
e2e-k8s-mock e2e-k8s-hostpath: e2e-k8s-%: $(KIND) $(PINNED)/crane $(TOOLS)/specsum
	@KIND=$(KIND) CRANE=$(PINNED)/crane SPECSUM=$(TOOLS)/specsum e2e/k8s/mirror $(KIND_CLUSTER) "$(OWN_IMAGES)" e2e/k8s/run $(KIND_CLUSTER) $*
e2e-forms: kind-load
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER) busybox
	@KIND=$(KIND) KUSTOMIZE_IMAGES="$$(cat $(TOOLS)/kind-images)" deploy/try-overlays $(KIND_CLUSTER) $(OVERLAYS)

# On a cluster of its own, of one node, whose kubelet is stopped and killed.
e2e-kubelet: $(KIND) $(TOOLS)/testsum
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-diff
	@KIND=$(KIND) KUBELET_SYNC=5s deploy/kind-up $(KIND_CLUSTER)-diff 1 $(KIND_NODE_IMAGE)
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER)-diff busybox
	@config=$$(mktemp) && trap 'rm -f $$config' EXIT && $(KIND) get kubeconfig --name $(KIND_CLUSTER)-diff >$$config && \
	cd e2e && REWRITE=$(REWRITE) E2E_KUBECONFIG=$$config E2E_KUBELET_NODE=$(KIND_CLUSTER)-diff-control-plane go test -json $(TESTFLAGS_e2e) -run '$(or $(RUN),^Test(Kubelet(Diff|Scenarios)|Takeover))' . | $(TOOLS)/testsum
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-diff

e2e-migration:
	cd e2e && go test -count=1 -v -run '^TestMigration$$' -timeout 30m .
e2e-base-image:
	@deploy/try-base-image
e2e-arm64:
	@deploy/try-arm64
e2e-new-machine:
	@tools/try-new-machine

# Without SEED, a new one.
soak_seed = $(or $(SEED),$$RANDOM$$RANDOM)
soak-leaks:
	cd e2e && LEAKTEST_N=$(or $(N),1000) SEED=$(soak_seed) LEAKTEST_FORM=$(FORM) LEAKTEST_KILL=$(KILL) LEAKTEST_FORMER=$(abspath $(FORMER)) \
		LEAKTEST_FAULTS=$(or $(FAULTS),late$(,)lost$(,)hang$(,)crash$(,)uncertain-then-final$(,)already-exists$(,)api-away) \
		go test -count=1 -v -run '^TestLeaks$$' -timeout 2h .
soak-snapshot-leaks:
	cd e2e && LEAKTEST_N=$(or $(N),2000) LEAKTEST_GROUPS=$(or $(GROUPS),200) SEED=$(soak_seed) \
		LEAKTEST_PAIRS=$(or $(PAIRS),ours/ours$(,)ours/upstream$(,)upstream/ours$(,)upstream/upstream) \
		go test -count=1 -v -run '^TestSnapshotLeaks$$' -timeout 3h ./clusters
# Their directories need not outlive the machine, and fsync of a disk would take most of the time.
IN_MEMORY = $(if $(wildcard /dev/shm/.),TMPDIR=/dev/shm GOTMPDIR=$(or $(TMPDIR),/tmp))
soak-model:
	cd nodeagent && $(IN_MEMORY) SEED=$(soak_seed) MODEL_STEPS=$(or $(N),20000) go test -count=1 -v -run '^TestModel$$' -timeout 1h ./internal/agent | grep -v '^=== '
soak-mutants:
	cd nodeagent && $(IN_MEMORY) SEED=$(soak_seed) MUTANTS=$(or $(N),1000) go test -count=1 -v -run '^TestMutants$$' -timeout 2h ./internal/agent | grep -v '^=== '
# N is in seconds.
soak-hostile:
	cd hostpathdriver && SEED=$(soak_seed) HOSTILE_SECONDS=$(or $(N),300) go test -count=1 -v -run '^TestHostileTenant$$' -timeout 2h . | grep -v '^=== '

$(filter-out bench-manynodes,$(BENCHES:%=bench-%)): bench-%:
	cd e2e && BENCH_N=$(N) BENCH_FOREIGN=$(FOREIGN) BENCH_QUIET=$(QUIET) BENCH_MINUTES=$(MINUTES) BENCH_COMPONENT=$(COMPONENT) BENCH_OTHER=$(abspath $(OTHER)) \
		go test -run '^$$' -bench '(?i)^Benchmark$*$$' -benchtime $(or $(ROUNDS),1)x -timeout 3h ./bench
bench-manynodes: NODES = 200
bench-manynodes: PODS = 1000
bench-manynodes:
	cd e2e && BENCH_NODES=$(NODES) BENCH_PODS=$(PODS) BENCH_RATE=$(RATE) go test -run '^$$' -bench '^BenchmarkManyNodes$$' -benchtime 1x -timeout 1h ./bench

$(TOOLS)/specsum: $(wildcard tools/cmd/specsum/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && GOWORK=off go build -o $@ ./cmd/specsum
