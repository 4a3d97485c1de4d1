// Package etcd checks the members of a stacked etcd, which runs on the control planes
// of its Kubernetes cluster as kubeadm sets it up by default.
package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// memberTimeout is how long one member may take to answer.
const memberTimeout = 3 * time.Second

// removeTimeout is how long the removal of a member may take, with the election of another
// leader before it.
const removeTimeout = 15 * time.Second

// ClientConfig is how to connect to etcd.
type ClientConfig struct {
	Dial                 func(ctx context.Context, address string) (net.Conn, error)
	Address              string // host:port of one member
	CA, Certificate, Key []byte // PEM, of a client
}

// Member is one member of an etcd cluster.
type Member struct {
	Name        string // the name of its node, as kubeadm names it; empty = it has been added and never started
	Learner     bool   // it does not count for the quorum yet
	HealthError string // why it is not healthy; empty = it is
}

// ListMembers returns the members with the health of each. The error is about the list
// of members or of alarms; a member that cannot be reached is not healthy.
func ListMembers(ctx context.Context, a ClientConfig) ([]Member, error) {
	client, err := connect(a, a.Address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // nothing was written
	bounded, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	list, err := client.MemberList(bounded)
	if err != nil {
		return nil, fmt.Errorf("list the members of etcd at %s: %w", a.Address, err)
	}
	alarms, err := client.AlarmList(bounded)
	if err != nil {
		return nil, fmt.Errorf("list the alarms of etcd at %s: %w", a.Address, err)
	}
	members := make([]Member, len(list.Members))
	for i, m := range list.Members {
		members[i] = Member{Name: m.Name, Learner: m.IsLearner, HealthError: healthError(ctx, a, m, alarms.Alarms)}
	}
	return members, nil
}

// RemoveMember removes a member by its name, alive or dead, through another one, and reports
// whether it was there. Afterwards it is a member no more. An error means that it may be one
// still: etcd removes none while a majority of the others does not answer.
func RemoveMember(ctx context.Context, through ClientConfig, name string) (removed bool, err error) {
	client, err := connect(through, through.Address)
	if err != nil {
		return false, err
	}
	defer func() { _ = client.Close() }() // all was answered
	bounded, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	for {
		list, err := client.MemberList(bounded)
		if err != nil {
			return removed, fmt.Errorf("list the members of etcd at %s: %w", through.Address, err)
		}
		i := slices.IndexFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.Name == name })
		if i < 0 {
			return removed, nil
		}
		if _, err := client.MemberRemove(bounded, list.Members[i].ID); err != nil && !errors.Is(err, rpctypes.ErrMemberNotFound) {
			return removed, fmt.Errorf("remove the member %s of etcd at %s: %w", name, through.Address, err)
		}
		removed = true
	}
}

// healthError returns why a member is not healthy, "" when it is: it has raised an alarm,
// or fails a linearizable read, which needs the quorum.
func healthError(ctx context.Context, a ClientConfig, m *etcdserverpb.Member, alarms []*etcdserverpb.AlarmMember) string {
	for _, alarm := range alarms {
		if alarm.MemberID == m.ID && alarm.Alarm != etcdserverpb.AlarmType_NONE {
			return "it has raised the alarm " + alarm.Alarm.String()
		}
	}
	if len(m.ClientURLs) == 0 {
		return "it has not started"
	}
	client, err := connect(a, m.ClientURLs[0])
	if err != nil {
		return err.Error()
	}
	defer func() { _ = client.Close() }() // nothing was written
	bounded, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	if _, err := client.Get(bounded, "health"); err != nil { // what etcdctl endpoint health reads
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Sprintf("no answer within %s", memberTimeout)
		}
		return err.Error()
	}
	return ""
}

// connect returns a client of one endpoint.
func connect(a ClientConfig, endpoint string) (*clientv3.Client, error) {
	pair, err := tls.X509KeyPair(a.Certificate, a.Key)
	if err != nil {
		return nil, errors.New("the client certificate for etcd cannot be used with its key") // without the cause, which may quote the key
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.CA) {
		return nil, errors.New("the CA certificate of etcd is no certificate")
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: memberTimeout, Logger: zap.NewNop(),
		TLS:         &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: []tls.Certificate{pair}},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(a.Dial)},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", endpoint, err)
	}
	return client, nil
}

// CheckMembers returns everything that is wrong with the members: each control plane must
// have one, there must be no other, and all must be healthy voting members. The member of
// the control plane except may be missing or unhealthy: that control plane is about to be
// taken down, and the others have to keep the quorum without it.
func CheckMembers(members []Member, controlPlanes []string, except string) (problems []string) {
	seen := map[string]bool{}
	for _, m := range members {
		seen[m.Name] = true
		switch {
		case m.Name == "":
			problems = append(problems, "etcd has a member that has never started: remove it (etcdctl member remove)")
		case !slices.Contains(controlPlanes, m.Name):
			problems = append(problems, fmt.Sprintf("etcd has a member %s, which is no control plane of the cluster: remove it (etcdctl member remove), it counts for the quorum", m.Name))
		case m.Name == except:
		case m.Learner:
			problems = append(problems, fmt.Sprintf("etcd member %s is still a learner", m.Name))
		case m.HealthError != "":
			problems = append(problems, fmt.Sprintf("etcd member %s is not healthy: %s", m.Name, m.HealthError))
		}
	}
	for _, name := range controlPlanes {
		if !seen[name] && name != except {
			problems = append(problems, fmt.Sprintf("control plane %s has no etcd member", name))
		}
	}
	return problems
}
