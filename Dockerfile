# Both binaries in one image: ebb (with the embedded engine) and ebb-worker.
# They are static: the SQLite of the embedded engine is pure Go.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
ENV CGO_ENABLED=0
RUN go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ebb ./starter \
 && go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/ebb-worker ./worker

# A base with a shell, since an infrastructure command may be a script.
FROM debian:bookworm-slim
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/ebb /out/ebb-worker /usr/local/bin/
RUN install -d -m 0700 -o 65532 -g 65532 /var/lib/ebb
# The embedded engine keeps its database in $XDG_STATE_HOME/ebb.
ENV HOME=/var/lib/ebb XDG_STATE_HOME=/var/lib EBB_CONFIG=/etc/ebb/ebb.yaml
USER 65532:65532
VOLUME /var/lib/ebb
# 7233: the engine's gRPC, 8233: its Web UI; only with `ebb dev`.
EXPOSE 7233 8233
ENTRYPOINT ["ebb"]
CMD ["--help"]
