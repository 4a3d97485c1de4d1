package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"ebb/internal/config"
)

// reloadInterval is how long a certificate is used before its files are checked again.
const reloadInterval = time.Second

// keyPair is a certificate and its key, reloaded when the files have changed.
type keyPair struct {
	files config.TLS
	log   *zap.Logger
	now   func() time.Time

	mu        sync.Mutex
	checkedAt time.Time
	versions  [2]fileVersion
	pair      *tls.Certificate // the last valid one
}

// fileVersion differs between two versions of a file.
type fileVersion struct {
	modified time.Time
	size     int64
}

// openKeyPair loads the certificate and its key, or says what is wrong with them.
func openKeyPair(files config.TLS, log *zap.Logger) (*keyPair, error) {
	p := &keyPair{files: files, log: log, now: time.Now}
	var err error
	if p.versions, err = p.fileVersions(); err != nil {
		return nil, err
	}
	if err := p.load(); err != nil {
		return nil, err
	}
	p.checkedAt = p.now()
	return p, nil
}

func (p *keyPair) load() error {
	pair, err := tls.LoadX509KeyPair(p.files.CertificateFile, p.files.KeyFile)
	if err != nil {
		return fmt.Errorf("gateway.tls: %w", err)
	}
	p.pair = &pair
	return nil
}

// fileVersions returns the versions of the certificate and of the key.
func (p *keyPair) fileVersions() (versions [2]fileVersion, err error) {
	for i, path := range []string{p.files.CertificateFile, p.files.KeyFile} {
		info, err := os.Stat(path)
		if err != nil {
			return versions, fmt.Errorf("gateway.tls: %w", err)
		}
		versions[i] = fileVersion{info.ModTime(), info.Size()}
	}
	return versions, nil
}

// current is a tls.Config.GetCertificate. While the files do not match, as between the
// two writes of a renewal, the last valid pair stays in use.
func (p *keyPair) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if now.Sub(p.checkedAt) < reloadInterval {
		return p.pair, nil
	}
	p.checkedAt = now
	versions, err := p.fileVersions()
	if err == nil && versions == p.versions {
		return p.pair, nil
	}
	if err == nil {
		err = p.load()
	}
	if err != nil {
		p.log.Warn("the certificate cannot be read again, the last good one stays in use", zap.Error(err))
		return p.pair, nil
	}
	p.versions = versions
	p.log.Info("certificate read again", zap.String("file", p.files.CertificateFile))
	return p.pair, nil
}

// listen returns l with TLS.
func (p *keyPair) listen(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: p.current, NextProtos: []string{"h2", "http/1.1"}})
}
