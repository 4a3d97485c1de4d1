package nodetools

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"ebb/internal/sandbox/nodedir"
)

const (
	apiPatience = 5 * time.Minute        // how long a program waits for an API server that is down
	apiPause    = 250 * time.Millisecond // between two calls to it
	apiTimeout  = 10 * time.Second       // of one call
)

// api talks to the kube-apiserver with a client certificate.
type api struct {
	url    string
	client *http.Client
}

func (n node) api(as nodedir.KeyPair) (*api, error) {
	ca, err := os.ReadFile(n.info.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s holds no certificate", n.info.CA)
	}
	pair, err := tls.LoadX509KeyPair(as.Cert, as.Key)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}
	return &api{url: n.info.API, client: &http.Client{Transport: transport, Timeout: apiTimeout}}, nil
}

// call makes a request, again and again while the API server is down, overloaded,
// or so new that it does not know yet what this node may do. It returns the status
// code and the body of the last answer.
func (a *api) call(method, path string, body any) (code int, answer []byte, err error) {
	settled := false
	for deadline := time.Now().Add(apiPatience); ; time.Sleep(apiPause) {
		code, answer, err = a.once(method, path, body)
		down := err != nil || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
		if code == http.StatusForbidden && !settled {
			down = true
			ready, _, readyErr := a.once(http.MethodGet, "/readyz", nil)
			settled = readyErr == nil && ready == http.StatusOK
		}
		if !down || time.Now().After(deadline) {
			return code, answer, err
		}
	}
}

func (a *api) once(method, path string, body any) (code int, answer []byte, err error) {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, a.url+path, reader)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	answer, err = io.ReadAll(resp.Body)
	return resp.StatusCode, answer, errors.Join(err, resp.Body.Close())
}
