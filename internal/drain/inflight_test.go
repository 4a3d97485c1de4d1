package drain

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb/internal/cluster"
)

func TestEvictionUnderWayOutlastsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempt, end := context.WithCancel(t.Context())
		request, done := withGrace(attempt, evictionGrace)
		defer done()
		end()
		time.Sleep(evictionGrace - time.Millisecond)
		synctest.Wait()
		require.NoError(t, request.Err(), "the API server is not cut off between its two writes")
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		require.ErrorIs(t, request.Err(), context.Canceled, "one that does not answer does not hold the attempt up")
	})
}

// The attempt ends while the API server works on an eviction: the request is
// answered all the same.
func TestEvictionUnderWayIsAnsweredWhenTheAttemptEnds(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(arrived)
		<-leave
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`) // the client sees a broken answer
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	r := newRun(Request{Cluster: &cluster.Cluster{Client: client}, Log: zap.NewNop()})
	attempt, end := context.WithCancel(t.Context())
	a := newPod("a")
	r.pods[a.UID] = &pod{Pod: a}
	r.evict(attempt, eviction{pod: a.UID})
	<-arrived
	end()
	select {
	case e := <-r.evictions:
		t.Errorf("it was cut off: %v", e.err)
	case <-time.After(300 * time.Millisecond): // a request that is cut off ends at once
	}
	close(leave)
	r.requests.Wait()
	if !t.Failed() {
		require.NoError(t, (<-r.evictions).err)
	}
}

func TestFinishedEvictionLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempt, end := context.WithCancel(t.Context())
		request, done := withGrace(attempt, evictionGrace)
		done()
		require.ErrorIs(t, request.Err(), context.Canceled)
		end()
		synctest.Wait()
	})
}
