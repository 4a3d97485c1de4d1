// Package cloudstacktest is an HTTP server that behaves like the part of the
// CloudStack API that Ebb uses, seen with the keys of an ordinary account: it
// checks signatures, pages, runs jobs, and fails when it is told to. Tests only.
package cloudstacktest

import (
	"crypto/hmac"
	"crypto/sha1" // #nosec G505 -- the API signs with HMAC-SHA1
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// The keys that the server accepts.
const (
	APIKey    = "test-api-key_0aZ-9" // #nosec G101 -- of this server only
	SecretKey = "test-secret-key_+/="
)

// maxPageSize is the largest page size that the server accepts, CloudStack's default.
const maxPageSize = 500

// VM is a virtual machine. In state Expunged it is not listed, but its ID is known.
type VM struct {
	ID, Name, State string
	Addresses       []string // the first is its nic's, an IPv6 one goes into the other field, the others are secondary
	Project, Zone   string   // IDs
	Account         string   // "" = the caller's own
	ISO             string   // ID of the attached ISO
	Arch            string   // x86_64 or aarch64; "" = not said, as by old versions
}

// ISO is an ISO image.
type ISO struct {
	ID, Name, Zone string
	NotReady       bool // it is being downloaded
	Hidden         bool // not shared with the account
}

// KubernetesVersion is a Kubernetes version that CloudStack has the binaries of.
type KubernetesVersion struct {
	ID, Name, Version string
	ISO               string // ID
	Zone              string // "" = all zones
	Arch              string
	State             string // Enabled or Disabled
}

// PortForwardingRule is a port-forwarding rule, of one port or a range.
type PortForwardingRule struct {
	VM                    string // ID
	Public, Private       int
	PublicEnd, PrivateEnd int // 0 = one port
	State, Protocol       string
}

// NamedResource is something with a name and an ID.
type NamedResource struct{ ID, Name string }

// PublicIPAddress is a public address with its rules.
type PublicIPAddress struct {
	ID, IP, Project, Zone string
	Rules                 []PortForwardingRule
}

// KubernetesCluster is a Kubernetes cluster of CloudStack.
type KubernetesCluster struct {
	ID, Name, Project string
	Type              string   // CloudManaged or ExternalManaged
	VMs               []string // IDs of VMs
}

// injectedFault is how one call of a command fails.
type injectedFault struct {
	status   int // of the answer
	text     string
	dropConn bool // the connection is closed instead of an answer, after the work is done
	body     string
}

// Server is the API. After the first request its fields are set through Change.
type Server struct {
	Projects  []NamedResource
	Zones     []NamedResource
	Clusters  []KubernetesCluster
	Addresses []PublicIPAddress
	ISOs      []ISO
	Versions  []KubernetesVersion

	HideDestroyed  bool   // as for an account that may not see destroyed machines
	JobPolls       int    // for how many requests a job runs on; -1 = for ever
	JobError       string // jobs fail with this, and have no effect
	JobErrorAsText bool   // a failed job gives its reason as plain text, as old versions do
	// ChangeISO is what a host does to the drive of a machine at the end of a job; iso is
	// the ID of the ISO that is attached, empty = it is detached. Its error fails the job.
	ChangeISO func(vm VM, iso string) error

	http   *httptest.Server
	mu     sync.Mutex
	vms    []*VM
	jobs   map[string]*asyncJob
	calls  []Call
	faults map[string][]injectedFault
}

// Call is a request that was made, without what signs it.
type Call struct {
	Command string
	Params  url.Values
}

// Start serves on loopback until Close; secure = with TLS.
func Start(secure bool, vms ...VM) *Server {
	s := &Server{jobs: map[string]*asyncJob{}, faults: map[string][]injectedFault{}}
	for i := range vms {
		vm := vms[i]
		s.vms = append(s.vms, &vm)
	}
	s.http = httptest.NewUnstartedServer(s)
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the tests
	if secure {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	return s
}

// Close ends the server.
func (s *Server) Close() { s.http.Close() }

// Endpoint returns the URL of the API.
func (s *Server) Endpoint() string { return s.http.URL + "/client/api" }

// Certificate returns the server's, in DER form; only with TLS.
func (s *Server) Certificate() []byte { return s.http.Certificate().Raw }

// Update changes the server between two requests.
func (s *Server) Update(change func(*Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// FailNext makes the next calls of a command fail with a code, one call per text.
func (s *Server) FailNext(command string, code int, texts ...string) {
	for _, text := range texts {
		s.addFault(command, injectedFault{status: code, text: text})
	}
}

// DropNext makes the next call of a command take effect and close its connection
// without a response.
func (s *Server) DropNext(command string) { s.addFault(command, injectedFault{dropConn: true}) }

// RespondNext sets the whole response of the next call of a command.
func (s *Server) RespondNext(command string, status int, body string) {
	s.addFault(command, injectedFault{status: status, body: body})
}

func (s *Server) addFault(command string, f injectedFault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[command] = append(s.faults[command], f)
}

// Calls returns the calls of a command so far, refused ones included.
func (s *Server) Calls(command string) []url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []url.Values
	for _, call := range s.calls {
		if call.Command == command {
			found = append(found, call.Params)
		}
	}
	return found
}

// VM returns a machine as it is now.
func (s *Server) VM(id string) VM {
	s.mu.Lock()
	defer s.mu.Unlock()
	if vm := s.vm(id); vm != nil {
		return *vm
	}
	return VM{}
}

func (s *Server) vm(id string) *VM {
	at := slices.IndexFunc(s.vms, func(vm *VM) bool { return vm.ID == id })
	if at < 0 {
		return nil
	}
	return s.vms[at]
}

// apiError is an error response.
type apiError struct {
	code int
	text string
}

func (r *apiError) Error() string { return r.text }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil || r.URL.Path != "/client/api" {
		http.Error(w, "<html>no API here</html>", http.StatusNotFound)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	command := r.Form.Get("command")
	if !validSignature(r.Form) {
		writeResponse(w, "errorresponse", nil, &apiError{http.StatusUnauthorized, "unable to verify user credentials and/or request signature"})
		return
	}
	s.advanceJobs()
	params := maps.Clone(r.Form)
	for _, key := range []string{"apiKey", "signature", "signatureversion", "expires", "response", "command"} {
		delete(params, key)
	}
	s.calls = append(s.calls, Call{Command: command, Params: params})
	var broken injectedFault
	if waiting := s.faults[command]; len(waiting) > 0 {
		broken, s.faults[command] = waiting[0], waiting[1:]
	}
	name := strings.ToLower(command) + "response"
	switch {
	case broken.body != "":
		w.Header().Set("Location", "http://127.0.0.1:9/elsewhere")
		w.WriteHeader(broken.status)
		_, _ = w.Write([]byte(broken.body)) // the client may be gone
	case broken.status != 0:
		writeResponse(w, name, nil, &apiError{broken.status, broken.text})
	default:
		content, refused := s.runCommand(command, params)
		if broken.dropConn {
			panic(http.ErrAbortHandler) // closes the connection
		}
		writeResponse(w, name, content, refused)
	}
}

func writeResponse(w http.ResponseWriter, name string, content any, refused *apiError) {
	w.Header().Set("Content-Type", "application/json")
	if refused != nil {
		content = map[string]any{"uuidList": []string{}, "errorcode": refused.code, "cserrorcode": 9999, "errortext": refused.text}
		w.WriteHeader(refused.code)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{name: content}) // the client may be gone
}

// validSignature checks the signature as CloudStack defines it: HMAC-SHA1, with the
// secret key, of the parameters in the order of their names, URL-encoded with
// %20 for a space, all in lower case; and that it has not expired.
func validSignature(form url.Values) bool {
	if form.Get("apiKey") != APIKey || form.Get("signatureversion") != "3" {
		return false
	}
	expires, err := time.Parse(time.RFC3339, form.Get("expires"))
	if err != nil || time.Now().After(expires) {
		return false
	}
	var pairs []string
	for key := range form {
		if key != "signature" {
			value := strings.ReplaceAll(url.QueryEscape(form.Get(key)), "+", "%20")
			pairs = append(pairs, strings.ToLower(key+"="+value))
		}
	}
	slices.Sort(pairs)
	mac := hmac.New(sha1.New, []byte(SecretKey))
	_, _ = fmt.Fprint(mac, strings.Join(pairs, "&")) // a hash takes everything
	return hmac.Equal([]byte(form.Get("signature")), []byte(base64.StdEncoding.EncodeToString(mac.Sum(nil))))
}
