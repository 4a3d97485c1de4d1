package infra

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ebb/internal/config"
	"ebb/internal/infra/cloudstacktest"
)

func TestCloudStackJobOutlivesALostPoll(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	server.JobPolls = 3
	server.DropNext("queryAsyncJobResult")
	server.FailNext("queryAsyncJobResult", 503, "restarting")
	require.NoError(t, p.Destroy(t.Context(), byName))
	require.Equal(t, "Destroyed", server.VM(idW1).State)
	require.Len(t, server.Calls("destroyVirtualMachine"), 1)
}

func TestCloudStackJobThatNeverEnds(t *testing.T) {
	server, p := cloud(t, func(cfg *config.Infrastructure) { cfg.Timeout = config.Duration(700 * time.Millisecond) }, vmW1(), vmW2)
	server.JobPolls = -1
	err := p.Destroy(t.Context(), byName)
	require.EqualError(t, err, "destroy of the machine of node w1: CloudStack destroyVirtualMachine, job job-1: "+
		"no answer within 700ms (infrastructure.timeout): context deadline exceeded")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, Permanent(err))
}

func TestCloudStackCancelled(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	server.JobPolls = -1
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- p.Destroy(ctx, byName) }()
	require.Eventually(t, func() bool { return len(server.Calls("queryAsyncJobResult")) > 0 }, 20*time.Second, 10*time.Millisecond)
	cancel()
	err := <-failed
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "stopped: context canceled")

	_, err = p.State(ctx, byName)
	require.EqualError(t, err, "state of the machine of node w1: CloudStack listVirtualMachines: stopped: context canceled")
}

func TestCloudStackWrongKeys(t *testing.T) {
	const wrong = "another-secret-key"
	_, p := cloud(t, func(cfg *config.Infrastructure) { cfg.CredentialsFile = keyFile(t, wrong) }, vmW1())
	_, err := p.State(t.Context(), byName)
	require.EqualError(t, err, "state of the machine of node w1: CloudStack listVirtualMachines: "+
		"error 401: unable to verify user credentials and/or request signature")
	require.True(t, Permanent(err))
}

// Whatever goes wrong, neither key is in an error: it ends in a history.
func TestCloudStackErrorsHoldNoKeys(t *testing.T) {
	server, p := cloud(t, nil, vmW1(), vmW2)
	var failures []error
	note := func(err error) {
		require.Error(t, err)
		failures = append(failures, err)
	}
	both := cloudstacktest.APIKey + " " + cloudstacktest.SecretKey
	server.FailNext("listVirtualMachines", 530, "request of "+both+" failed")
	_, err := p.State(t.Context(), byName)
	require.ErrorContains(t, err, "request of [apiKey] [secretKey] failed")
	note(err)
	for _, status := range []int{200, 302, 400, 500} {
		server.RespondNext("listVirtualMachines", status, "<html>"+both+"</html>")
		_, err = p.State(t.Context(), byName)
		note(err)
	}
	server.RespondNext("listVirtualMachines", 200, `{"listvirtualmachinesresponse":{"virtualmachine":"`+both+`"}}`)
	_, err = p.State(t.Context(), byName)
	note(err)
	server.RespondNext("listVirtualMachines", 200, `{"count":0,"virtualmachine":[]}`) // the SDK would panic
	_, err = p.State(t.Context(), byName)
	note(err)
	server.Update(func(s *cloudstacktest.Server) { s.JobError, s.JobErrorAsText = both, true })
	note(p.Destroy(t.Context(), byName))
	server.DropNext("listVirtualMachines")
	_, err = p.State(t.Context(), byName)
	note(err)
	server.Close()
	_, err = p.State(t.Context(), byName)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	note(err)
	for _, err := range failures {
		for ; err != nil; err = errors.Unwrap(err) {
			require.NotContains(t, err.Error(), cloudstacktest.APIKey)
			require.NotContains(t, err.Error(), cloudstacktest.SecretKey)
			require.NotContains(t, err.Error(), "signature=")
		}
	}
	require.NotContains(t, fmt.Sprintf("%v %+v", failures, failures), cloudstacktest.SecretKey)
}

func TestCloudStackTLS(t *testing.T) {
	server := cloudstacktest.Start(true, vmW1(), vmW2)
	t.Cleanup(server.Close)
	cfg := config.Infrastructure{Provider: "cloudstack", Endpoint: server.Endpoint(), CredentialsFile: keyFile(t, cloudstacktest.SecretKey)}
	p, err := New(cfg)
	require.NoError(t, err)
	_, err = p.State(t.Context(), byName)
	require.ErrorContains(t, err, "certificate signed by unknown authority")

	cfg.CAFile = filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate()})
	require.NoError(t, os.WriteFile(cfg.CAFile, text, 0o600))
	p, err = New(cfg)
	require.NoError(t, err)
	s, err := p.State(t.Context(), byName)
	require.NoError(t, err)
	require.Equal(t, Running, s)
}
