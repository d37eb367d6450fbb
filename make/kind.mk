# A cluster of containers, with the real kubelet: `make kind-up deploy`. Needs docker and kubectl.
KIND_CLUSTER ?= longshore
KIND_NODE_IMAGE ?= kindest/node:v1.36.3
KIND := $(PINNED)/kind
OVERLAY ?= kind

$(KIND):
	@mkdir -p $(PINNED)
	cd tools && GOWORK=off go build -o $@ sigs.k8s.io/kind

##@ Cluster in containers
.PHONY: kind-up kind-load deploy kind-down
kind-up: $(KIND) ## Create a kind cluster (NODES=3, KIND_NODE_IMAGE)
	@KIND=$(KIND) deploy/kind-up $(KIND_CLUSTER) $(NODES) $(KIND_NODE_IMAGE)
kind-load: images $(KIND) ## Build all images and load them into the kind cluster
	@$(KIND) load docker-image --name $(KIND_CLUSTER) $(foreach m,$(IMAGES),$(IMAGE_PREFIX)/$(call field,$(m),image):$(call field,$(m),next))
deploy: kind-load ## Install or upgrade the driver in the kind cluster (OVERLAY=kind), and see a claim bound
	@deploy/apply deploy/overlays/$(OVERLAY) --context kind-$(KIND_CLUSTER)
kind-down: $(KIND) ## Remove the kind cluster and its volumes
	@$(KIND) delete cluster --name $(KIND_CLUSTER)
	@rm -rf $${XDG_STATE_HOME:-$$HOME/.local/state}/longshore/kind/$(KIND_CLUSTER)
