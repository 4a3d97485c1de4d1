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

// recheck is how long a certificate is used before its files are looked at again.
const recheck = time.Second

// keyPair is a certificate and its key, read again when the files have changed.
type keyPair struct {
	files config.TLS
	log   *zap.Logger
	now   func() time.Time

	mu     sync.Mutex
	looked time.Time
	stamp  [2]stamp
	pair   *tls.Certificate // the last good one
}

// stamp tells one version of a file from another.
type stamp struct {
	modified time.Time
	size     int64
}

// openKeyPair reads the files for the first time; they must be good.
func openKeyPair(files config.TLS, log *zap.Logger) (*keyPair, error) {
	p := &keyPair{files: files, log: log, now: time.Now}
	var err error
	if p.stamp, err = p.stamps(); err != nil {
		return nil, err
	}
	if err := p.load(); err != nil {
		return nil, err
	}
	p.looked = p.now()
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

func (p *keyPair) stamps() (stamps [2]stamp, err error) {
	for i, path := range []string{p.files.CertificateFile, p.files.KeyFile} {
		info, err := os.Stat(path)
		if err != nil {
			return stamps, fmt.Errorf("gateway.tls: %w", err)
		}
		stamps[i] = stamp{info.ModTime(), info.Size()}
	}
	return stamps, nil
}

// current is the certificate as the files have it now. While they do not fit
// together, as between the two writes of a renewal, the last good one stays.
func (p *keyPair) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if now.Sub(p.looked) < recheck {
		return p.pair, nil
	}
	p.looked = now
	stamps, err := p.stamps()
	if err == nil && stamps == p.stamp {
		return p.pair, nil
	}
	if err == nil {
		err = p.load()
	}
	if err != nil {
		p.log.Warn("the certificate cannot be read again, the last good one stays in use", zap.Error(err))
		return p.pair, nil
	}
	p.stamp = stamps
	p.log.Info("certificate read again", zap.String("file", p.files.CertificateFile))
	return p.pair, nil
}

func (p *keyPair) listen(l net.Listener) net.Listener {
	return tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: p.current, NextProtos: []string{"h2", "http/1.1"}})
}
