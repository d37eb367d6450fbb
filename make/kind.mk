# A cluster of containers, with the real kubelet: `make kind-up deploy`. Needs docker and kubectl.
KIND_CLUSTER ?= longshore
# kindest/node of the same Kubernetes as the development cluster, where docker has it: kind has not published one, but `kind build node-image`
# makes it. Otherwise the newest that was published with the pinned kind, which docker pulls. A digest may follow the name.
KUBERNETES := $(shell sed -nE 's/^\tk8s.io\/kubernetes (v[^ ]+).*/\1/p' devcluster/controlplane/go.mod)
KIND_NODE_IMAGE ?= $(shell docker image inspect kindest/node:$(KUBERNETES) >/dev/null 2>&1 && echo kindest/node:$(KUBERNETES) || echo kindest/node:v1.36.4)
KIND := $(PINNED)/kind
OVERLAY ?= kind

$(KIND):
	@mkdir -p $(PINNED)
	cd tools && GOWORK=off go build -o $@ sigs.k8s.io/kind
$(PINNED)/crane:
	@mkdir -p $(PINNED)
	cd tools && GOWORK=off go build -o $@ github.com/google/go-containerregistry/cmd/crane

##@ Cluster in containers
.PHONY: kind-up kind-load deploy kind-down
kind-up: $(KIND) ## Create a kind cluster (NODES=3, KIND_NODE_IMAGE)
	@KIND=$(KIND) deploy/kind-up $(KIND_CLUSTER) $(NODES) $(KIND_NODE_IMAGE)
# Builds all images and loads them into the kind cluster.
kind-load: images $(KIND)
	@KIND=$(KIND) deploy/kind-load $(KIND_CLUSTER) $(OWN_IMAGES) >$(TOOLS)/kind-images
deploy: kind-load ## Install or upgrade the driver in the kind cluster (OVERLAY=kind), and mount a volume on each node (MONITORING=1: and a Prometheus)
	@KUSTOMIZE_IMAGES="$$(cat $(TOOLS)/kind-images)" deploy/apply deploy/overlays/$(OVERLAY) --context kind-$(KIND_CLUSTER)
	$(if $(MONITORING),@KIND=$(KIND) deploy/prometheus/apply $(KIND_CLUSTER))
kind-down: $(KIND) ## Remove the kind cluster and its volumes
	@KIND=$(KIND) deploy/kind-down $(KIND_CLUSTER)
