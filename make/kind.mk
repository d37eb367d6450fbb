# A cluster of containers, with the real kubelet: `make kind-up deploy`. Needs docker and kubectl.
KIND_CLUSTER ?= longshore
# kindest/node:v1.36.3, of the same Kubernetes as the development cluster, where docker has it: kind has not published one, but `kind build
# node-image` makes it. Otherwise the nearest that was published with the pinned kind, which docker pulls. A digest may follow the name.
KIND_NODE_IMAGE ?= $(shell docker image inspect kindest/node:v1.36.3 >/dev/null 2>&1 && echo kindest/node:v1.36.3 || echo kindest/node:v1.36.4)
KIND := $(PINNED)/kind
OVERLAY ?= kind

$(KIND):
	@mkdir -p $(PINNED)
	cd tools && GOWORK=off go build -o $@ sigs.k8s.io/kind

##@ Cluster in containers
.PHONY: kind-up kind-load deploy kind-down e2e-kind e2e-k8s
kind-up: $(KIND) ## Create a kind cluster (NODES=3, KIND_NODE_IMAGE)
	@KIND=$(KIND) deploy/kind-up $(KIND_CLUSTER) $(NODES) $(KIND_NODE_IMAGE)
kind-load: images $(KIND) ## Build all images and load them into the kind cluster
	@KIND=$(KIND) deploy/kind-load $(KIND_CLUSTER) $(foreach m,$(IMAGES),$(IMAGE_PREFIX)/$(call field,$(m),image):$(call image_version,$(m))) >$(TOOLS)/kind-images
deploy: kind-load ## Install or upgrade the driver in the kind cluster (OVERLAY=kind), and mount a volume on each node (MONITORING=1: and a Prometheus)
	@KUSTOMIZE_IMAGES="$$(cat $(TOOLS)/kind-images)" deploy/apply deploy/overlays/$(OVERLAY) --context kind-$(KIND_CLUSTER)
	$(if $(MONITORING),@KIND=$(KIND) deploy/prometheus/apply $(KIND_CLUSTER))
kind-down: $(KIND) ## Remove the kind cluster and its volumes
	@$(KIND) delete cluster --name $(KIND_CLUSTER)
	@rm -rf $${XDG_STATE_HOME:-$$HOME/.local/state}/longshore/kind/$(KIND_CLUSTER)

# Both run on a cluster made by `make kind-up deploy`.
# A kubelet changes nothing about these tests, which `make test` runs on a development cluster of the same Kubernetes.
E2E_NO_KUBELET := ^Test(Manifests|DryRun|InlineVolumePolicy|InlineVolumesOfNamedDrivers|MissingParameter|PodWaitsForCapacity|PoolsHave|CapacityOf|CapacityGoes|ClaimsSpread|ClaimIsMade|RetainedVolume|VolumeDeletedBefore)
e2e-kind: $(KIND) $(TOOLS)/testsum ## Run the end-to-end tests on the kind cluster (E2E_KIND=kubelet: only those that a kubelet changes)
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER) busybox
	@config=$$(mktemp) && trap 'rm -f $$config' EXIT && $(KIND) get kubeconfig --name $(KIND_CLUSTER) >$$config && \
	cd e2e && E2E_KUBECONFIG=$$config go test -json $(TESTFLAGS_e2e) $(if $(filter kubelet,$(E2E_KIND)),-skip '$(E2E_NO_KUBELET)') ./... | $(TOOLS)/testsum -keep $(TOOLS)/e2e-kind.json && \
	$(TOOLS)/testsum -total $(TOOLS)/e2e-kind.json
e2e-k8s: $(KIND) $(TOOLS)/specsum ## Run the storage suite of Kubernetes on the kind cluster (FOCUS, SKIP, FEATURES, PROCS=12; ONE_NODE=1 FOCUS=...: with volumes of one node)
	@KIND=$(KIND) SPECSUM=$(TOOLS)/specsum e2e/k8s/run $(KIND_CLUSTER)

.PHONY: e2e-overlays
e2e-overlays: kind-load ## Try every form of deployment, or those of OVERLAYS, on the kind cluster, which must have no volumes; ends with the overlay kind
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER) busybox
	@KIND=$(KIND) KUSTOMIZE_IMAGES="$$(cat $(TOOLS)/kind-images)" deploy/try-overlays $(KIND_CLUSTER) $(OVERLAYS)

# On a cluster of its own, as the driver has the name that ours has.
.PHONY: swap
swap: $(KIND) images ## Swap the sidecars of kubernetes-csi for ours and back, under load, with their manifests
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-swap
	@KIND=$(KIND) deploy/kind-up $(KIND_CLUSTER)-swap 1 $(KIND_NODE_IMAGE)
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER)-swap busybox
	@KIND=$(KIND) deploy/try-swap $(KIND_CLUSTER)-swap $$(KIND=$(KIND) deploy/kind-load $(KIND_CLUSTER)-swap $(foreach m,$(IMAGES),$(IMAGE_PREFIX)/$(call field,$(m),image):$(call image_version,$(m))))
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-swap

# On a cluster of its own, of one node, whose kubelet is stopped and killed.
.PHONY: e2e-kubelet-diff
e2e-kubelet-diff: $(KIND) $(TOOLS)/testsum ## Compare the real kubelet, in a kind cluster, with its transcripts in e2e/testdata/kubelet, and have it and csi-node-agent take over from each other (REWRITE=1 writes the transcripts; RUN: names of tests)
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-diff
	@KIND=$(KIND) KUBELET_SYNC=5s deploy/kind-up $(KIND_CLUSTER)-diff 1 $(KIND_NODE_IMAGE)
	@KIND=$(KIND) e2e/k8s/images $(KIND_CLUSTER)-diff busybox
	@config=$$(mktemp) && trap 'rm -f $$config' EXIT && $(KIND) get kubeconfig --name $(KIND_CLUSTER)-diff >$$config && \
	cd e2e && REWRITE=$(REWRITE) E2E_KUBECONFIG=$$config E2E_KUBELET_NODE=$(KIND_CLUSTER)-diff-control-plane go test -json $(TESTFLAGS_e2e) -run '$(or $(RUN),^Test(Kubelet(Diff|Scenarios)|Takeover))' . | $(TOOLS)/testsum
	@$(MAKE) --no-print-directory kind-down KIND_CLUSTER=$(KIND_CLUSTER)-diff

$(TOOLS)/specsum: $(wildcard tools/cmd/specsum/*.go)
	@mkdir -p $(TOOLS)
	@cd tools && go build -o $@ ./cmd/specsum
