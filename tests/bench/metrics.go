package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
)

// requestCounts is what the API server has counted since it started.
type requestCounts struct {
	requests         int // of one account, watches included
	refusedEvictions int // evictions answered with 429 or 500, of anybody; only the tools evict
}

func (c requestCounts) since(before requestCounts) requestCounts {
	return requestCounts{requests: c.requests - before.requests, refusedEvictions: c.refusedEvictions - before.refusedEvictions}
}

// readCounts asks the API server for its own metrics. It does not label requests with
// the user agent; what tells the tools apart is that each has an account of its
// own, whose requests match a FlowSchema of its own.
func (a account) readCounts(ctx context.Context, api kubernetes.Interface) (requestCounts, error) {
	data, err := api.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return requestCounts{}, fmt.Errorf("read the metrics of the API server: %w", err)
	}
	var c requestCounts
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "{")
		labels, number, ok := strings.Cut(rest, "} ")
		if !ok || name != "apiserver_flowcontrol_dispatched_requests_total" && name != "apiserver_request_total" {
			continue
		}
		value, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return requestCounts{}, fmt.Errorf("metric %q: %w", lines.Text(), err)
		}
		has := func(label, value string) bool { return strings.Contains(","+labels+",", ","+label+`="`+value+`",`) }
		switch {
		case name == "apiserver_flowcontrol_dispatched_requests_total" && has("flow_schema", a.name):
			c.requests += int(value)
		case name == "apiserver_request_total" && has("subresource", "eviction") && (has("code", "429") || has("code", "500")):
			c.refusedEvictions += int(value)
		}
	}
	return c, lines.Err()
}
