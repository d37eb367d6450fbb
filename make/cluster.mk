# A cluster of plain processes on this machine; see devcluster/README.md.
NODES ?= 3
UPFLAGS ?= --nodes $(NODES)

##@ Cluster
.PHONY: up demo down status up-setup
up-setup:
	@make/setup up
build/devcluster: | $(if $(filter up,$(MAKECMDGOALS)),up-setup)
up: build/devcluster ## Start a cluster (the first time downloads the control plane, or builds it in some minutes)
	@$(BIN)/devcluster up $(UPFLAGS)
demo: ## Show a claim become a mounted directory; starts the cluster first (KUBECONFIG=FILE: on another cluster)
	@$(MAKE) --no-print-directory $(if $(KUBECONFIG_GIVEN),build/devcluster,up)
	@$(BIN)/devcluster demo $(if $(KUBECONFIG_GIVEN),--kubeconfig $(KUBECONFIG))
down: build/devcluster ## Stop the cluster and remove everything of it
	@$(BIN)/devcluster down
status: build/devcluster ## Show the processes of the cluster
	@$(BIN)/devcluster status

# A KUBECONFIG on the command line of make is meant; one in the environment is about kubectl.
KUBECONFIG_GIVEN := $(filter command line,$(origin KUBECONFIG))
