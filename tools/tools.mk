# Programs that are built from pinned modules: `make tools` for those of the sandbox,
# `make lint-tools` for the linters. They are built again when their pins have changed.
# Included by the Makefile, which sets BIN.

# One set of flags for everything that is compiled, Ebb, its tests, the sandbox and the lab:
# packages with other flags are compiled again. Without inlining and debugging data a build
# from nothing takes a quarter less CPU. What is released (Dockerfile) is built with both.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath "-gcflags=all=-l -dwarf=false"

KUBERNETES_VERSION := $(shell sed -n 's|^.*k8s.io/kubernetes v\([^ ]*\).*|\1|p' tools/sandbox/go.mod)
CONTROL_PLANE := etcd kube-apiserver kube-controller-manager kube-scheduler kwok

# The programs of Kubernetes report the version of their module, as a release does.
version_package := k8s.io/component-base/version
KUBERNETES_LDFLAGS := -s -w -X $(version_package).gitVersion=v$(KUBERNETES_VERSION) \
	-X $(version_package).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES_VERSION))) \
	-X $(version_package).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES_VERSION))) \
	-X $(version_package).gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=v$(KUBERNETES_VERSION)

.PHONY: sandbox tools lint-tools FORCE
sandbox: $(if $(EBB_SANDBOX_BIN),,$(BIN)/.sandbox) $(BIN)/sandbox-node
tools: sandbox $(if $(wildcard $(EBB_SANDBOX_BIN)/kubectl),,$(BIN)/kubectl) ## build the programs of the sandbox into .bin/ when missing or when their pins changed
lint-tools: $(BIN)/golangci-lint $(BIN)/workflowcheck

# .sandbox is touched when the control plane has been built; a program that is missing since
# has it built again.
SANDBOX_PINS := tools/sandbox/go.mod tools/sandbox/go.sum
missing := $(filter-out $(wildcard $(addprefix $(BIN)/,$(CONTROL_PLANE))),$(addprefix $(BIN)/,$(CONTROL_PLANE)))
$(BIN)/.sandbox: $(SANDBOX_PINS) $(if $(missing),FORCE)
	@tools/build.sh tools/sandbox "$(KUBERNETES_LDFLAGS)" kube-apiserver=k8s.io/kubernetes/cmd/kube-apiserver \
		kube-controller-manager=k8s.io/kubernetes/cmd/kube-controller-manager kube-scheduler=k8s.io/kubernetes/cmd/kube-scheduler \
		etcd=go.etcd.io/etcd/server/v3 kwok=sigs.k8s.io/kwok/cmd/kwok
	@touch $@

$(BIN)/kubectl: $(SANDBOX_PINS)
	@tools/build.sh tools/sandbox "$(KUBERNETES_LDFLAGS)" kubectl=k8s.io/kubernetes/cmd/kubectl

$(BIN)/golangci-lint $(BIN)/workflowcheck: tools/lint/go.mod tools/lint/go.sum
	@tools/build.sh tools/lint "-s -w" golangci-lint=github.com/golangci/golangci-lint/v2/cmd/golangci-lint \
		workflowcheck=go.temporal.io/sdk/contrib/tools/workflowcheck

# The programs of the sandbox's nodes: standard library only, built in a second.
$(BIN)/sandbox-node: go.mod $(wildcard internal/sandbox/node/*.go internal/sandbox/nodetools/*.go internal/sandbox/nodedir/*.go)
	@tools/build.sh . "-s -w" sandbox-node=./internal/sandbox/node
