# Ebb. `make help` lists the targets; `make demo` and `make test` need nothing
# but Go, gcc, git and make.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
BIN := .bin
export EBB_BIN := $(CURDIR)/$(BIN)

include tools/tools.mk

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: ## print the settings that make compiles with: eval "$$(make -s env)" before go build or go test
	@printf 'export %s=%q\n' CGO_ENABLED "$$CGO_ENABLED" GOFLAGS "$$GOFLAGS" EBB_BIN "$$EBB_BIN"

.PHONY: build ebb
build: ebb ## build ebb, ebb-worker, ebb-gateway and ebb-agent into .bin/
	@tools/build.sh . "$(LDFLAGS)" ebb-worker=./worker ebb-gateway=./gateway ebb-agent=./agent
ebb:
	@tools/build.sh . "$(LDFLAGS)" ebb=./starter

.PHONY: demo
demo: ## drain, scale down and upgrade a real control plane, four acts (KEEP=1 leaves it running)
	@tools/demo-intro.sh
	@$(MAKE) --no-print-directory sandbox ebb
	@$(BIN)/ebb demo $(if $(KEEP),--keep)

# Unit tests compute; the others mostly wait for a control plane, and run side by side, each
# with a sandbox of its own.
UNIT_TESTS := ./activities/... ./internal/... ./workflows/... ./starter/... ./worker/... ./gateway/... ./agent/... ./tests/replay/... ./tests/randomised
SANDBOX_TESTS := ./tests/e2e/... ./tests/gateway ./tests/endpoints ./tests/tunnel ./tests/faults

.PHONY: test test-short
test: build tools ## all tests: unit, workflows, replay, and end to end on the sandbox
	@echo "test: unit, workflow and replay tests"
	@go test $(UNIT_TESTS)
	@echo "test: on the sandbox (real kube-apiserver, etcd, SSH, Temporal, xDS clients): end to end, gateways that are restarted, endpoints, the tunnel, a part of the fault matrix"
	@go test -timeout 30m $(SANDBOX_TESTS)
test-short: ## the tests of a developer's loop, which start no servers of others: under two minutes once compiled
	@go test -short $(UNIT_TESTS)

.PHONY: test-restart
test-restart: build ## restart the gateway under its users, in every way: processes, nginx, an init (some minutes)
	@go test -count=1 -v -timeout 15m ./tests/gateway

.PHONY: faults
faults: build tools ## kill worker, engine, API server and SSH at every step, and race 200 times; all of it takes about an hour
	@FAULTS=all go test -count=1 -timeout 120m -v ./tests/faults
	@EBB_RACES=200 go test -count=1 -timeout 30m -v -run Race ./tests/e2e/operations
	@EBB_SEEDS=5000 go test -count=1 -timeout 30m ./tests/randomised

.PHONY: lab lab-up lab-down
lab: build ## upgrade real kubeadm clusters on machines of this host (root, Debian; 20 minutes, the first time 40; LAB_RUN=TestName)
	@rm -rf $(BIN)/lab/logs
	@EBB_LAB=1 EBB_LAB_LOGS=$(CURDIR)/$(BIN)/lab/logs go test -count=1 -v -timeout 60m $(if $(LAB_RUN),-run $(LAB_RUN)) ./tests/lab
lab-up: build ## start the lab and keep it
	@go run ./tests/lab/ebblab up .
lab-down: ## remove the lab, all of it
	@go run ./tests/lab/ebblab down .

.PHONY: bench
bench: build tools ## measure Ebb against kubectl on the same cluster, ten minutes (ROWS=one,three; BENCH_JSON=file; ROWS=tunnel)
	@go run ./tests/bench $(if $(ROWS),-rows $(ROWS))

.PHONY: check
check: lint-tools ## golangci-lint, workflowcheck, and go.mod as go mod tidy leaves it
	@echo "check: golangci-lint"
	@$(BIN)/golangci-lint run ./...
	@echo "check: workflowcheck"
	@$(BIN)/workflowcheck -test=false ./workflows/...
	@echo "check: a workflow that touches the world fails the check"
	@go test -count=1 ./tests/guards
	@echo "check: go mod tidy"
	@go mod tidy -diff

RECORDING := $(CURDIR)/tests/replay/histories/$(shell date -u +%Y%m%d)

.PHONY: record
record: build tools ## record replay histories from real runs on the sandbox, into a folder of their own in tests/replay/histories
	@mkdir -p $(RECORDING)
	@EBB_RECORD=$(RECORDING) go test -count=1 -timeout 20m ./tests/e2e/...

.PHONY: clean
clean: ## remove .bin/
	@rm -rf $(BIN)
