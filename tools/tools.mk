# Programs that are built from pinned modules: `make tools` for those of the
# sandbox, `make lint-tools` for the linters. A program is built again when its
# pins have changed. Included by the Makefile, which sets BIN.

BIN ?= .bin
KUBERNETES_VERSION := $(shell sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' tools/kubernetes/go.mod)
KUBERNETES_PROGRAMS := kube-apiserver kube-controller-manager kube-scheduler kubectl
TOOLS := $(addprefix $(BIN)/,etcd $(KUBERNETES_PROGRAMS) kwok sandbox-node)

# The pinned programs report the version of their module, as a release does.
version_parts := $(subst ., ,$(patsubst v%,%,$(KUBERNETES_VERSION)))
version_package := k8s.io/component-base/version
KUBERNETES_LDFLAGS := -s -w -X $(version_package).gitVersion=$(KUBERNETES_VERSION) \
	-X $(version_package).gitMajor=$(word 1,$(version_parts)) -X $(version_package).gitMinor=$(word 2,$(version_parts)) \
	-X $(version_package).gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=$(KUBERNETES_VERSION)

# $(call build-tool,FOLDER,LDFLAGS,PACKAGE,NAME): builds one program of a tool module and says how long
# it took. It is touched because go build leaves a program alone that would come out the same.
define build-tool
@mkdir -p $(BIN)
@began=$$(date +%s); echo "tools: building $(4) from tools/$(1) (the first time takes minutes)"; \
(cd tools/$(1) && CGO_ENABLED=0 go build -trimpath -ldflags "$(2)" -o $(abspath $(BIN))/$(4) $(3)) && \
touch $@ && echo "tools: built in $$(( $$(date +%s) - began )) s"
endef

.PHONY: tools
tools: $(TOOLS) ## build the programs of the sandbox into .bin/ when missing or when their pins changed

.PHONY: lint-tools
lint-tools: $(BIN)/golangci-lint $(BIN)/workflowcheck

$(addprefix $(BIN)/,$(KUBERNETES_PROGRAMS)): $(BIN)/%: tools/kubernetes/go.mod tools/kubernetes/go.sum
	$(call build-tool,kubernetes,$(KUBERNETES_LDFLAGS),k8s.io/kubernetes/cmd/$*,$*)

$(BIN)/etcd: tools/etcd/go.mod tools/etcd/go.sum
	$(call build-tool,etcd,-s -w,go.etcd.io/etcd/server/v3,etcd)

$(BIN)/kwok: tools/kwok/go.mod tools/kwok/go.sum
	$(call build-tool,kwok,-s -w,sigs.k8s.io/kwok/cmd/kwok,kwok)

$(BIN)/golangci-lint: tools/lint/go.mod tools/lint/go.sum
	$(call build-tool,lint,-s -w,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,golangci-lint)

$(BIN)/workflowcheck: tools/lint/go.mod tools/lint/go.sum
	$(call build-tool,lint,-s -w,go.temporal.io/sdk/contrib/tools/workflowcheck,workflowcheck)

# The programs of the sandbox's nodes: standard library only, built in a second.
$(BIN)/sandbox-node: go.mod $(wildcard internal/sandbox/node/*.go internal/sandbox/nodetools/*.go internal/sandbox/nodedir/*.go)
	@mkdir -p $(BIN)
	@echo "tools: building sandbox-node"
	@CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $@ ./internal/sandbox/node
	@touch $@
