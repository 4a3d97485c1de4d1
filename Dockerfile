# All binaries in one image: ebb (with the embedded engine), ebb-worker, ebb-gateway and ebb-agent.
# They are static: the SQLite of the embedded engine is pure Go.
# The version of Go that go.mod names.
FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
ENV CGO_ENABLED=0
RUN go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ebb ./starter \
 && go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ebb-worker ./worker \
 && go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ebb-gateway ./gateway \
 && go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ebb-agent ./agent

# A base with a shell, since an infrastructure command may be a script.
FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ebb /out/ebb-worker /out/ebb-gateway /out/ebb-agent /usr/local/bin/
RUN install -d -m 0700 -o 65532 -g 65532 /var/lib/ebb
# The embedded engine keeps its database in $XDG_STATE_HOME/ebb.
ENV HOME=/var/lib/ebb XDG_STATE_HOME=/var/lib EBB_CONFIG=/etc/ebb/ebb.yaml
USER 65532:65532
VOLUME /var/lib/ebb
# 7233: the engine's gRPC, 8233: its Web UI; only with `ebb dev`. 8470: the gateway, 8471: endpoints over xDS and 8472: the tunnel if it serves them. 8473: health and metrics of an agent.
EXPOSE 7233 8233 8470 8471 8472 8473
ENTRYPOINT ["ebb"]
CMD ["--help"]
