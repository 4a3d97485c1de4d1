package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
)

// clientCAs are the CAs of client certificates, reloaded when their file has changed.
type clientCAs struct {
	setting string // that names the file
	path    string
	log     *zap.Logger

	mu      sync.Mutex
	version fileVersion
	pool    *x509.CertPool // of the last valid version
}

// openClientCAs loads the CAs of client certificates from the file of a setting; nil if none
// is configured.
func (g *gateway) openClientCAs(setting, path string) (*clientCAs, error) {
	if path == "" {
		return nil, nil
	}
	cas := &clientCAs{setting: setting, path: path, log: g.log}
	return cas, cas.load()
}

// verify returns an error unless a client's certificate, with those in between after it, is
// good now: the handshake may be long ago.
func (s *clientCAs) verify(chain []*x509.Certificate) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: s.current(), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

// current returns the CAs of the file, or of its last valid version.
func (s *clientCAs) current() *x509.CertPool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(); err != nil {
		s.log.Warn("the authorities of clients cannot be read again, the last good ones stay in use", zap.Error(err))
	}
	return s.pool
}

// load reads the file if it has changed. The caller holds mu, or is the only user.
func (s *clientCAs) load() error {
	info, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("%s: %w", s.setting, err)
	}
	now := fileVersion{info.ModTime(), info.Size()}
	if now == s.version {
		return nil
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return fmt.Errorf("%s: %w", s.setting, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return fmt.Errorf("%s: there is no certificate in %s", s.setting, s.path)
	}
	s.pool, s.version = pool, now
	return nil
}
