package sandbox

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientapi "k8s.io/client-go/tools/clientcmd/api"

	"ebb/internal/sandbox/nodedir"
)

// certLife is far more than any sandbox lives.
const certLife = 30 * 24 * time.Hour

// pki is a certificate authority with its files in one directory, all private to the user.
type pki struct {
	dir    string
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	serial int64
}

func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p := &pki{dir: dir, key: key}
	p.cert = p.template(pkix.Name{CommonName: "ebb sandbox"})
	p.cert.IsCA, p.cert.BasicConstraintsValid = true, true
	p.cert.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, p.cert, p.cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	if p.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return p, writePEM(p.ca(), "CERTIFICATE", der)
}

// ca returns the file of the authority's certificate.
func (p *pki) ca() string { return filepath.Join(p.dir, "ca.crt") }

func (p *pki) template(subject pkix.Name) *x509.Certificate {
	p.serial++
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(p.serial), Subject: subject,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLife),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
}

// issue makes a certificate for servers on loopback and for clients: user in the groups.
func (p *pki) issue(file, user string, groups ...string) (nodedir.KeyPair, error) {
	pair := nodedir.KeyPair{Cert: filepath.Join(p.dir, file+".crt"), Key: filepath.Join(p.dir, file+".key")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, err
	}
	cert := p.template(pkix.Name{CommonName: user, Organization: groups})
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.DNSNames, cert.IPAddresses = []string{"localhost"}, []net.IP{net.ParseIP(loopback)}
	der, err := x509.CreateCertificate(rand.Reader, cert, p.cert, key.Public(), p.key)
	if err != nil {
		return pair, err
	}
	if err := writePEM(pair.Cert, "CERTIFICATE", der); err != nil {
		return pair, err
	}
	return pair, writeKey(pair.Key, key)
}

// serviceAccountKey makes the key that signs service account tokens.
func (p *pki) serviceAccountKey() (string, error) {
	file := filepath.Join(p.dir, "sa.key")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	return file, writeKey(file, key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig writes a kubeconfig that holds the certificates themselves, mode 0600.
func (p *pki) kubeconfig(path, server string, pair nodedir.KeyPair) error {
	const name = "sandbox"
	cluster, user := clientapi.NewCluster(), clientapi.NewAuthInfo()
	cluster.Server = server
	for file, into := range map[string]*[]byte{
		p.ca(): &cluster.CertificateAuthorityData, pair.Cert: &user.ClientCertificateData, pair.Key: &user.ClientKeyData,
	} {
		data, err := os.ReadFile(file) // #nosec G304 -- below the sandbox directory
		if err != nil {
			return err
		}
		*into = data
	}
	cfg := clientapi.NewConfig()
	cfg.Clusters[name], cfg.AuthInfos[name] = cluster, user
	cfg.Contexts[name] = &clientapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return nil
}
